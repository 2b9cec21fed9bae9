//! The queries of the metrics API, whatever answers them.
//!
//! A query has the meaning of a form of PromQL: `promql` writes it as text for Prometheus, and
//! `proxies` computes the same from scrapes of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use mesh_core::units::parse_prometheus_duration;

/// An instant query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub family: Family,
    pub matchers: Matchers,
    pub function: Function,
    /// The labels of the result.
    pub by: Grouping,
}

/// A function of the series of each group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Function {
    /// The sum of a gauge.
    Sum,
    /// The highest value of a gauge.
    Max,
    /// The increase of a counter within a time window.
    Increase(TimeWindow),
    /// A quantile of a histogram, of the observations between the last two samples within a time
    /// window.
    Quantile(Quantile, TimeWindow),
}

/// A quantile of latencies that tables show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantile {
    P50,
    P95,
    P99,
}

mesh_core::names! {
    /// The metrics that queries are about, with the name of their series. The series of a histogram
    /// are its buckets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Family, ALL {
        Responses = "response_total",
        ResponseLatency = "response_latency_ms_bucket",
        OpenConnections = "tcp_open_connections",
        ReadBytes = "tcp_read_bytes_total",
        WriteBytes = "tcp_write_bytes_total",
        Allowed = "inbound_http_authz_allow_total",
        Denied = "inbound_http_authz_deny_total",
        RouteResponses = "route_response_total",
        ActualRouteResponses = "route_actual_response_total",
        RouteLatency = "route_response_latency_ms_bucket",
        GatewayAlive = "gateway_alive",
        GatewayLatency = "gateway_probe_latency_ms_bucket",
        ProcessStart = "process_start_time_seconds",
        /// In seconds since 1970.
        CertificateExpiry = "control_identity_cert_expiration_timestamp_seconds",
        /// Its labels have the tier, and the reason for it. A node agent exports it, no proxy.
        RedirectionTier = "mesh_agent_tier_info",
    }
}

/// The matchers of a selector, by label; a later one replaces an earlier one of the same label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matchers(pub(super) BTreeMap<String, Matcher>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Matcher {
    Equal(String),
    Regex(String),
    NotEmpty,
}

/// The labels that group the series of a result.
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

/// The quantiles in the order of the columns of tables.
pub const QUANTILES: [Quantile; 3] = [Quantile::P50, Quantile::P95, Quantile::P99];

impl Query {
    /// Returns the range of the samples; `None` for current values.
    pub(super) fn window(&self) -> Option<&TimeWindow> {
        match &self.function {
            Function::Increase(window) | Function::Quantile(_, window) => Some(window),
            Function::Sum | Function::Max => None,
        }
    }
}

impl Quantile {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P95 => 0.95,
            Self::P99 => 0.99,
        }
    }
}

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

    /// Returns the query for the increase of a counter within the window.
    pub fn increase(&self, family: Family, window: &TimeWindow, by: &Grouping) -> Query {
        self.query(family, Function::Increase(window.clone()), by)
    }

    /// Returns the query for a quantile of a histogram.
    pub fn quantile(
        &self,
        quantile: Quantile,
        family: Family,
        window: &TimeWindow,
        by: &Grouping,
    ) -> Query {
        self.query(family, Function::Quantile(quantile, window.clone()), by)
    }

    /// Returns the query for the sum of a gauge.
    pub fn sum(&self, family: Family, by: &Grouping) -> Query {
        self.query(family, Function::Sum, by)
    }

    /// Returns the query for the highest value of a gauge.
    pub fn max(&self, family: Family, by: &Grouping) -> Query {
        self.query(family, Function::Max, by)
    }

    fn query(&self, family: Family, function: Function, by: &Grouping) -> Query {
        Query {
            family,
            matchers: self.clone(),
            function,
            by: by.clone(),
        }
    }
}

impl Grouping {
    pub fn of(labels: &[&str]) -> Self {
        Self(labels.iter().map(|label| (*label).to_owned()).collect())
    }

    /// Returns these labels followed by further labels.
    #[must_use]
    pub fn and(&self, labels: &[&str]) -> Self {
        let Self(further) = Self::of(labels);
        Self([&self.0[..], &further[..]].concat())
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

    pub(super) fn duration(&self) -> Duration {
        self.duration
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

/// Escapes characters that have a meaning in regular expressions.
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

#[cfg(test)]
mod tests {
    use super::*;

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
