//! An ordered set of label pairs. Building one allocates; cloning and comparing do not. Called by whoever resolves
//! handles, never on the request path.

use std::borrow::Cow;
use std::sync::Arc;

use prometheus::proto::LabelPair;

/// Label names and values in print order. Names may come from the control plane, so they are made valid here.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels {
    // Shared, because one target resolves a dozen families with the same set.
    pairs: Arc<Vec<(Cow<'static, str>, Arc<str>)>>,
}

impl Labels {
    pub fn new() -> Self {
        Self::default()
    }

    /// This set with one more pair at the end.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        self.push(name, value);
        self
    }

    /// Adds one pair at the end.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) {
        Arc::make_mut(&mut self.pairs).push((valid_name(name.into()), value.into()));
    }

    /// Adds all pairs of another set at the end.
    pub fn extend(&mut self, other: &Labels) {
        Arc::make_mut(&mut self.pairs).extend(other.pairs.iter().cloned());
    }

    /// The pairs in print order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs
            .iter()
            .map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    pub(super) fn to_pairs(&self) -> Vec<LabelPair> {
        self.iter()
            .map(|(name, value)| {
                let mut pair = LabelPair::default();
                pair.set_name(name.to_owned());
                pair.set_value(value.to_owned());
                pair
            })
            .collect()
    }
}

/// A single invalid name makes a scraper reject the whole page, so characters outside `[a-zA-Z0-9_]` become `_`.
fn valid_name(name: Cow<'static, str>) -> Cow<'static, str> {
    let invalid = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let starts_badly = name.starts_with(|c: char| c.is_ascii_digit());
    if !name.is_empty() && !starts_badly && !name.contains(invalid) {
        return name;
    }
    let mut fixed = String::with_capacity(name.len() + 1);
    if name.is_empty() || starts_badly {
        fixed.push('_');
    }
    fixed.extend(name.chars().map(|c| if invalid(c) { '_' } else { c }));
    fixed.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_valid() {
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
    fn a_derived_set_leaves_the_original_alone() {
        let base = Labels::new().with("direction", "inbound");
        let derived = base.clone().with("status_code", "200");
        assert_eq!(base.iter().count(), 1);
        assert_eq!(
            derived.iter().collect::<Vec<_>>(),
            [("direction", "inbound"), ("status_code", "200")]
        );
    }
}
