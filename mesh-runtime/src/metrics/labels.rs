//! An ordered set of label pairs. Building one allocates; cloning does not, and a set that is
//! derived from another shares its first pairs. Used to resolve handles, never on the request path.

use std::borrow::Cow;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Label names and values in print order. Invalid names, which the control plane may send, are
/// corrected here.
///
/// One target resolves a few dozen series with the same first twenty labels followed by one or two
/// others, so both parts are shared, and each takes no more memory than it needs: with a thousand
/// targets these sets are a considerable part of a proxy's memory.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// The pairs of the set that this one extends; they come first.
    base: Option<Arc<Pairs>>,
    own: Arc<Pairs>,
    /// The pairs whose values peers choose, by [`Origin`]: bit n is set for pair n.
    marked: [u64; Origin::ALL.len()],
}

/// Where a value comes from whose number in a family is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Anyone may choose it.
    Outside,
    /// It is the identity of a peer with a certificate.
    Identity,
}

type Pairs = Vec<(Cow<'static, str>, Arc<str>)>;

/// Replaces outside values in a family that has reached its limit.
pub const OTHER: &str = "(other)";

/// A set grows by this number of pairs at a time. Most sets have between ten and twenty; doubling
/// would leave a third of them unused.
const STEP: usize = 4;

impl Labels {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one pair at the end.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        self.push(name, value);
        self
    }

    /// Adds one pair at the end.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) {
        if self.base.is_none() && !self.own.is_empty() && Arc::get_mut(&mut self.own).is_none() {
            self.base = Some(std::mem::take(&mut self.own));
        }
        let own = Arc::make_mut(&mut self.own);
        if own.len() == own.capacity() {
            own.reserve_exact(STEP);
        }
        own.push((valid_name(name.into()), shared(value.into())));
    }

    /// Adds one pair whose value comes from outside: from the client of a connection, or from the
    /// server that it connects to. A family has a limited number of series for such values; see
    /// [`super::MAX_OUTSIDE`].
    pub fn push_outside(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) {
        self.push_marked(Origin::Outside, name.into(), value.into());
    }

    /// Adds one pair whose value is the identity of a peer with a certificate. A family has a
    /// limited number of series for such values; see [`super::MAX_IDENTITIES`].
    pub fn push_identity(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Arc<str>>,
    ) {
        self.push_marked(Origin::Identity, name.into(), value.into());
    }

    fn push_marked(&mut self, origin: Origin, name: Cow<'static, str>, value: Arc<str>) {
        self.marked[origin as usize] |= bit(self.pairs().count());
        self.push(name, value);
    }

    /// Adds all pairs of another set at the end.
    pub fn extend(&mut self, other: &Labels) {
        for (n, (name, value)) in other.pairs().enumerate() {
            match other.origin(n) {
                Some(origin) => self.push_marked(origin, name.clone(), value.clone()),
                None => self.push(name.clone(), value.clone()),
            }
        }
    }

    /// Returns the values of this origin.
    pub(super) fn values_of(&self, origin: Origin) -> Vec<Arc<str>> {
        if self.marked[origin as usize] == 0 {
            return Vec::new();
        }
        self.pairs()
            .enumerate()
            .filter(|(n, _)| self.origin(*n) == Some(origin))
            .map(|(_, (_, value))| value.clone())
            .collect()
    }

    /// Returns this set with [`OTHER`] instead of the values of this origin, as a set without any.
    pub(super) fn without_values_of(&self, origin: Origin) -> Self {
        let mut labels = Self::new();
        for (n, (name, value)) in self.pairs().enumerate() {
            match self.origin(n) {
                Some(own) if own == origin => labels.push(name.clone(), OTHER),
                Some(other) => labels.push_marked(other, name.clone(), value.clone()),
                None => labels.push(name.clone(), value.clone()),
            }
        }
        labels
    }

    fn origin(&self, n: usize) -> Option<Origin> {
        let mut origins = Origin::ALL.into_iter();
        origins.find(|origin| self.marked[*origin as usize] & bit(n) != 0)
    }

    /// The pairs in print order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs()
            .map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    fn pairs(&self) -> impl Iterator<Item = &(Cow<'static, str>, Arc<str>)> {
        self.base
            .iter()
            .flat_map(|base| base.iter())
            .chain(&*self.own)
    }
}

impl Origin {
    pub(super) const ALL: [Self; 2] = [Self::Outside, Self::Identity];
}

/// Sets with more pairs than bits have all later values marked.
fn bit(n: usize) -> u64 {
    1 << n.min(63)
}

// The boundary between `base` and `own` does not matter for comparison.

impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Labels {}

impl PartialOrd for Labels {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Labels {
    fn cmp(&self, other: &Self) -> Ordering {
        self.iter().cmp(other.iter())
    }
}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().for_each(|pair| pair.hash(state));
    }
}

/// Number of values in the cache of a thread. About forty, such as `outbound` and `true`, are in
/// the sets of every target.
const SHARED_VALUES: usize = 128;

/// Longer values are names, which few sets have in common.
const MAX_SHARED_VALUE: usize = 32;

/// Returns an earlier value that is equal, if the thread still has it, so that sets share it.
fn shared(value: Arc<str>) -> Arc<str> {
    thread_local! {
        static VALUES: RefCell<[Option<Arc<str>>; SHARED_VALUES]> =
            const { RefCell::new([const { None }; SHARED_VALUES]) };
    }
    if value.len() > MAX_SHARED_VALUE {
        return value;
    }
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    let slot = hasher.finish() as usize % SHARED_VALUES;
    VALUES.with_borrow_mut(|values| match &values[slot] {
        Some(earlier) if *earlier == value => earlier.clone(),
        _ => values[slot].insert(value).clone(),
    })
}

/// Replaces characters outside `[a-zA-Z0-9_]` by `_`, because a single invalid name makes a scraper
/// reject the whole page.
fn valid_name(name: Cow<'static, str>) -> Cow<'static, str> {
    let invalid = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let starts_with_digit = name.starts_with(|c: char| c.is_ascii_digit());
    if !name.is_empty() && !starts_with_digit && !name.contains(invalid) {
        return name;
    }
    let mut fixed = String::with_capacity(name.len() + 1);
    if name.is_empty() || starts_with_digit {
        fixed.push('_');
    }
    fixed.extend(name.chars().map(|c| if invalid(c) { '_' } else { c }));
    fixed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_corrected() {
        for (given, expect) in [
            ("dst_pod", "dst_pod"),
            ("dst_app.kubernetes.io/name", "dst_app_kubernetes_io_name"),
            ("9lives", "_9lives"),
            ("", "_"),
        ] {
            assert_eq!(valid_name(given.into()), expect, "{given}");
        }
    }

    #[test]
    fn sets_with_the_same_pairs_are_equal() {
        let alone = Labels::new().with("a", "1").with("b", "2").with("c", "3");
        let base = Labels::new().with("a", "1").with("b", "2");
        let derived = base.clone().with("c", "3");
        assert!(derived.base.is_some());
        assert_eq!(derived, alone);
        assert!(base < derived);
        // A set derived from a derived one leaves it unchanged.
        let twice = derived.clone().with("d", "4");
        assert_eq!(twice.iter().count(), 4);
        assert_eq!(derived, alone);
    }

    #[test]
    fn equal_values_of_different_sets_are_one_in_memory() {
        let value = |labels: &Labels| labels.pairs().next().unwrap().1.clone();
        let [first, second] = [(), ()].map(|()| Labels::new().with("direction", "inbound"));
        assert!(Arc::ptr_eq(&value(&first), &value(&second)));
        let long = "a".repeat(MAX_SHARED_VALUE + 1);
        let [first, second] = [(), ()].map(|()| Labels::new().with("dst", long.as_str()));
        assert!(!Arc::ptr_eq(&value(&first), &value(&second)));
    }

    #[test]
    fn derived_set_leaves_the_original_unchanged() {
        let base = Labels::new().with("direction", "inbound");
        let derived = base.clone().with("status_code", "200");
        assert_eq!(base.iter().count(), 1);
        assert_eq!(
            derived.iter().collect::<Vec<_>>(),
            [("direction", "inbound"), ("status_code", "200")]
        );
    }
}
