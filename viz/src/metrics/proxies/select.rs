//! Which series a query is about.

use regex::Regex;

use super::super::query::{Matcher, Matchers};

/// The matchers of a query, ready to be applied to many series.
pub(super) struct Selector<'a>(Vec<(&'a str, Condition<'a>)>);

enum Condition<'a> {
    Equal(&'a str),
    Regex(Regex),
    NotEmpty,
}

impl<'a> Selector<'a> {
    /// Fails with an expression that is invalid or too large.
    pub(super) fn new(matchers: &'a Matchers) -> Result<Self, regex::Error> {
        let conditions = matchers.0.iter().map(|(label, matcher)| {
            let condition = match matcher {
                Matcher::Equal(value) => Condition::Equal(value),
                Matcher::Regex(regex) => Condition::Regex(whole(regex)?),
                Matcher::NotEmpty => Condition::NotEmpty,
            };
            Ok((label.as_str(), condition))
        });
        let conditions = conditions.collect::<Result<Vec<_>, regex::Error>>();
        Ok(Self(conditions?))
    }

    /// Returns whether the labels match. A missing label is an empty one.
    pub(super) fn matches<'b>(&self, label: impl Fn(&str) -> &'b str) -> bool {
        self.0.iter().all(|(name, condition)| {
            let value = label(name);
            match condition {
                Condition::Equal(expected) => value == *expected,
                Condition::Regex(regex) => regex.is_match(value),
                Condition::NotEmpty => !value.is_empty(),
            }
        })
    }
}

/// Prometheus matches whole values.
fn whole(regex: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!("^(?s:{regex})$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_those_of_prometheus() {
        let matches = |matchers: Matchers, value: &str| {
            let selector = Selector::new(&matchers).unwrap();
            selector.matches(|name| if name == "a" { value } else { "" })
        };
        let matchers = Matchers::new;
        for (matchers, value, expected) in [
            (matchers(), "", true),
            (matchers().equal("a", "b"), "b", true),
            (matchers().equal("a", "b"), "bc", false),
            (matchers().equal("other", ""), "b", true),
            (matchers().not_empty("a"), "b", true),
            (matchers().not_empty("a"), "", false),
            (matchers().regex("a", "b|c"), "c", true),
            (matchers().regex("a", "b|c"), "bc", false),
            (matchers().regex("a", "b.*"), "b\nc", true),
            (matchers().regex("a", "^web.*"), "web.shop:80", true),
            (matchers().equal("a", "b").not_empty("other"), "b", false),
        ] {
            assert_eq!(
                matches(matchers.clone(), value),
                expected,
                "{matchers} {value}"
            );
        }
        assert!(Selector::new(&matchers().regex("a", "(")).is_err());
    }
}
