//! The text of PromQL queries.
//!
//! Values of requests only appear as quoted strings. Matchers are sorted, as in Linkerd, so that
//! the text of a query is determined by its meaning.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use mesh_core::units::parse_prometheus_duration;

/// The matchers of a selector, by label; a later one replaces an earlier one of the same label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matchers(BTreeMap<String, Matcher>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    Equal(String),
    Regex(String),
    NotEmpty,
}

/// The labels by which the series of a result are grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping(pub Vec<String>);

/// The range of a query, a duration of Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeWindow {
    text: String,
    duration: Duration,
}

/// Why a text is not a time window.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid time window: expected a duration such as 1m or 30s")]
pub struct WindowError;

/// The quantiles of latencies that tables show.
pub const QUANTILES: [&str; 3] = ["0.5", "0.95", "0.99"];

impl Matchers {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn equal(self, label: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(label.into(), Matcher::Equal(value.into()))
    }

    /// The regular expression matches the whole value.
    #[must_use]
    pub fn regex(self, label: impl Into<String>, regex: impl Into<String>) -> Self {
        self.with(label.into(), Matcher::Regex(regex.into()))
    }

    #[must_use]
    pub fn not_empty(self, label: impl Into<String>) -> Self {
        self.with(label.into(), Matcher::NotEmpty)
    }

    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    fn with(mut self, label: String, matcher: Matcher) -> Self {
        self.0.insert(label, matcher);
        self
    }

    /// Returns the increase of a counter within the window.
    pub fn increase(&self, metric: &str, window: &TimeWindow, by: &str) -> String {
        format!("sum(increase({metric}{self}[{window}])) by ({by})")
    }

    /// Returns a quantile of a histogram of milliseconds.
    pub fn quantile(&self, quantile: &str, metric: &str, window: &TimeWindow, by: &str) -> String {
        format!("histogram_quantile({quantile}, sum(irate({metric}{self}[{window}])) by ({by}))")
    }

    /// Returns the sum of a gauge.
    pub fn sum(&self, metric: &str, by: &str) -> String {
        format!("sum({metric}{self}) by ({by})")
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

impl Grouping {
    pub fn of(labels: &[&str]) -> Self {
        Self(labels.iter().map(|label| (*label).to_owned()).collect())
    }
}

impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl TimeWindow {
    /// The window of the command line and of pages, unless another is chosen.
    pub fn minute() -> Self {
        Self {
            text: "1m".to_owned(),
            duration: Duration::from_secs(60),
        }
    }

    /// Parses a duration. An empty text is a minute, as in the command line.
    pub fn parse(text: &str) -> Result<Self, WindowError> {
        if text.is_empty() {
            return Ok(Self::minute());
        }
        let duration = parse_prometheus_duration(text).ok_or(WindowError)?;
        if duration.is_zero() {
            return Err(WindowError);
        }
        Ok(Self {
            text: text.to_owned(),
            duration,
        })
    }

    /// Returns an error if Prometheus scrapes less often than once in the window: the result would
    /// be empty. An interval that cannot be parsed is ignored.
    pub fn check_interval(&self, scrape_interval: &str) -> Result<(), String> {
        match parse_prometheus_duration(scrape_interval) {
            Some(interval) if self.duration < interval => Err(format!(
                "invalid time window: time window ({self}) must be at least as long as the Prometheus scrape interval ({scrape_interval})"
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Escapes what has a meaning in regular expressions.
pub fn quote_regex(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
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

    #[test]
    fn windows_are_durations_of_prometheus() {
        for (text, millis) in [
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("", 60_000),
        ] {
            let window = TimeWindow::parse(text).unwrap();
            assert_eq!(window.duration, Duration::from_millis(millis), "{text}");
        }
        for bad in [
            "1",
            "m",
            "1m]) or vector(1",
            "-1m",
            "1.5h",
            "0s",
            " 1m",
            "1M",
        ] {
            assert_eq!(TimeWindow::parse(bad), Err(WindowError), "{bad}");
        }
        let long = "1s".repeat(17);
        assert_eq!(TimeWindow::parse(&long), Err(WindowError));
    }

    #[test]
    fn window_shorter_than_scrape_interval_is_reported() {
        let window = TimeWindow::parse("15s").unwrap();
        assert_eq!(window.check_interval("10s"), Ok(()));
        assert_eq!(window.check_interval("15s"), Ok(()));
        assert_eq!(window.check_interval("?"), Ok(()));
        assert_eq!(
            window.check_interval("1m").unwrap_err(),
            "invalid time window: time window (15s) must be at least as long as the Prometheus scrape interval (1m)"
        );
    }
}
