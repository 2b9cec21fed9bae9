//! Metric labels of endpoints.

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
        let clean = |text: &str| text.replace(SEPARATOR, "");
        let pairs: BTreeMap<String, String> = pairs
            .into_iter()
            .map(|(name, value)| (clean(name.as_ref()), clean(value.as_ref())))
            .collect();
        let mut text = String::new();
        for (name, value) in &pairs {
            for part in [name, value] {
                text.push_str(part);
                text.push(SEPARATOR);
            }
        }
        Self { text: text.into() }
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
    fn separator_is_removed_from_names_and_values() {
        let labels = Labels::from([("a\0b", "c\0")]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("ab", "c")]);
    }
}
