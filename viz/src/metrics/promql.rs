//! The text of queries in PromQL.
//!
//! Values of requests only appear as quoted strings. Matchers are sorted, as in Linkerd, so that
//! the text of a query is determined by its meaning.

use std::fmt;

use super::query::{Function, Grouping, Matcher, Matchers, Query};

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { matchers, by, .. } = self;
        let metric = self.family.as_str();
        match &self.function {
            Function::Sum => write!(f, "sum({metric}{matchers}) by ({by})"),
            Function::Max => write!(f, "max({metric}{matchers}) by ({by})"),
            Function::Increase(window) => {
                write!(f, "sum(increase({metric}{matchers}[{window}])) by ({by})")
            }
            Function::Quantile(quantile, window) => write!(
                f,
                "histogram_quantile({}, sum(irate({metric}{matchers}[{window}])) by (le, {by}))",
                quantile.value()
            ),
        }
    }
}

impl fmt::Display for Matchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut matchers: Vec<String> = self
            .0
            .iter()
            .map(|(label, matcher)| match matcher {
                Matcher::Equal(value) => format!("{label}={}", quoted(value)),
                Matcher::Regex(regex) => format!("{label}=~{}", quoted(regex)),
                Matcher::NotEmpty => format!("{label}!=\"\""),
            })
            .collect();
        matchers.sort();
        write!(f, "{{{}}}", matchers.join(", "))
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// Returns a PromQL string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::super::query::quote_regex;
    use super::*;

    #[test]
    fn matchers_are_sorted_and_quoted() {
        let matchers = Matchers::new()
            .equal("namespace", "shop")
            .equal("pod", "a\"} or vector(1) or {b=\"")
            .not_empty("dst_pod")
            .equal("namespace", "other\\\n")
            .regex("authority", quote_regex("web.shop") + ".*");
        assert_eq!(
            matchers.to_string(),
            r#"{authority=~"web\\.shop.*", dst_pod!="", namespace="other\\\n", pod="a\"} or vector(1) or {b=\""}"#
        );
        assert_eq!(Matchers::new().to_string(), "{}");
    }
}
