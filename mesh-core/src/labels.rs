//! Metric labels of endpoints.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Names and values, sorted by name, each name once, in one allocation.
///
/// A control plane sends about eight pairs for each of thousands of endpoints. As a map of strings
/// they take 1.2 KiB for each endpoint, most of it unused capacity.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Names and values alternately, each followed by [`SEPARATOR`].
    text: Box<str>,
}

/// Removed from names and values.
const SEPARATOR: char = '\0';

/// Returns the label that has the name of a workload of this kind in metrics. Prometheus sets the
/// label `job`.
pub fn workload_label(kind: &str) -> &str {
    match kind {
        "job" => "k8s_job",
        kind => kind,
    }
}

impl Labels {
    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Iterates over the pairs, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut texts = self.text.split_terminator(SEPARATOR);
        std::iter::from_fn(move || Some((texts.next()?, texts.next()?)))
    }

    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Adds those pairs of `others` whose names are not present.
    #[must_use]
    pub fn or(&self, others: &BTreeMap<String, String>) -> Self {
        let others = others.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        others.chain(self.iter()).collect()
    }

    /// Adds a pair, or replaces the value of its name.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Self {
        self.iter().chain([(name, value)]).collect()
    }
}

/// The last of several pairs with the same name is kept.
impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let pairs: Vec<(N, V)> = pairs.into_iter().collect();
        let clean = pairs.iter().map(|(name, value)| {
            [
                without_separator(name.as_ref()),
                without_separator(value.as_ref()),
            ]
        });
        let mut pairs: Vec<[Cow<'_, str>; 2]> = clean.collect();
        // Pairs with the same name stay in order.
        pairs.sort_by(|[one, _], [other, _]| one.cmp(other));
        let length = pairs.iter().flatten().map(|part| part.len() + 1).sum();
        let mut text = String::with_capacity(length);
        for (at, [name, value]) in pairs.iter().enumerate() {
            if pairs.get(at + 1).is_some_and(|[next, _]| next == name) {
                continue;
            }
            for part in [name, value] {
                text.push_str(part);
                text.push(SEPARATOR);
            }
        }
        Self { text: text.into() }
    }
}

fn without_separator(text: &str) -> Cow<'_, str> {
    if text.contains(SEPARATOR) {
        text.replace(SEPARATOR, "").into()
    } else {
        text.into()
    }
}

impl<N: AsRef<str>, V: AsRef<str>, const LEN: usize> From<[(N, V); LEN]> for Labels {
    fn from(pairs: [(N, V); LEN]) -> Self {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_by_name() {
        let labels = Labels::from([("zone", ""), ("pod", "web-1"), ("", "nameless")]);
        let pairs: Vec<_> = labels.iter().collect();
        assert_eq!(pairs, [("", "nameless"), ("pod", "web-1"), ("zone", "")]);
        assert_eq!((labels.len(), labels.get("node")), (3, None));
        assert_eq!(labels.get("pod"), Some("web-1"));
        assert!(Labels::default().is_empty());
    }

    #[test]
    fn endpoint_pairs_take_precedence_over_set_pairs() {
        let own = Labels::from([("pod", "web-1")]);
        let set = [("pod", "none"), ("service", "web")];
        let set = set.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let both: Vec<_> = [("pod", "web-1"), ("service", "web")].into();
        assert_eq!(own.or(&set).iter().collect::<Vec<_>>(), both);
        assert_eq!(own.with("pod", "web-2").get("pod"), Some("web-2"));
    }

    #[test]
    fn last_of_equal_names_is_kept() {
        let labels = Labels::from([("pod", "a"), ("node", "n"), ("pod", "b"), ("p\0od", "c")]);
        let pairs: Vec<_> = labels.iter().collect();
        assert_eq!(pairs, [("node", "n"), ("pod", "c")]);
    }

    #[test]
    fn separator_is_removed_from_names_and_values() {
        let labels = Labels::from([("a\0b", "c\0")]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("ab", "c")]);
    }
}
