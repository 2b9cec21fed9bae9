//! The honest client that runs in parallel with an attack. Each of its requests must succeed.

use anyhow::Context;
use serde_json::Value;

use super::Run;
use crate::testbed::process::Process;

/// Duration in seconds of the measurement without an attack.
const ALONE: u32 = 10;

/// Requests per second, and the connections that they are distributed over.
const RATE: u32 = 200;
const CONNECTIONS: u32 = 8;

/// The report of the honest client.
#[derive(Debug, PartialEq)]
pub(super) struct HonestClientStats {
    pub(super) served: u64,
    pub(super) failed: u64,
    /// Error of the first failure.
    pub(super) failure: Option<String>,
    /// In milliseconds; absent if no request was served.
    pub(super) p99: Option<f64>,
}

/// Measures the honest client without an attack.
pub(super) fn measure_alone(run: &Run<'_>) -> anyhow::Result<HonestClientStats> {
    measure(run, "alone", ALONE)
}

/// Measures the honest client during an attack.
pub(super) fn measure_during_attack(
    run: &Run<'_>,
    seconds: u32,
) -> anyhow::Result<HonestClientStats> {
    measure(run, "honest", seconds)
}

fn measure(run: &Run<'_>, what: &str, seconds: u32) -> anyhow::Result<HonestClientStats> {
    let mut command = run.topology.bench_client()?;
    command
        .args(["load", "rate", "--target", &run.target.to_string()])
        .args(["--rate", &RATE.to_string()])
        .args(["--connections", &CONNECTIONS.to_string()])
        .args(["--seconds", &seconds.to_string()]);
    let name = format!("{}-{what}", run.name);
    read(&Process::start(&name, &mut command)?.output()?)
}

fn read(text: &str) -> anyhow::Result<HonestClientStats> {
    let report: Value = serde_json::from_str(text).with_context(|| format!("{text:?} is JSON"))?;
    let count = |name: &str| {
        report[name]
            .as_u64()
            .with_context(|| format!("{name} in {report}"))
    };
    Ok(HonestClientStats {
        served: count("operations")?,
        failed: count("failed")?,
        failure: report["failure"].as_str().map(str::to_owned),
        p99: report["p99"].as_f64().map(|micros| micros / 1e3),
    })
}

/// Formats a p99.
pub(super) fn time(p99: Option<f64>) -> String {
    p99.map_or("none".to_owned(), |p99| format!("{p99:.1} ms"))
}

#[cfg(test)]
impl HonestClientStats {
    pub(super) fn new(served: u64, failed: u64, p99: Option<f64>) -> Self {
        Self {
            served,
            failed,
            failure: None,
            p99,
        }
    }
}

impl HonestClientStats {
    /// Returns whether all requests were served.
    pub(super) fn is_unharmed(&self) -> bool {
        self.served > 0 && self.failed == 0
    }

    pub(super) fn summary(&self) -> String {
        let Self { served, failed, .. } = self;
        let mut text = format!("{served} honest requests served, {failed} failed");
        if let Some(failure) = &self.failure {
            text += &format!(" (the first: {failure})");
        }
        if let Some(p99) = self.p99 {
            text += &format!(", p99 {p99:.1} ms");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_report_is_parsed() {
        let honest =
            read(r#"{"operations": 7, "failed": 1, "failure": "HTTP/1.1 503", "p99": 1500.0}"#);
        let honest = honest.expect("a client's report");
        assert_eq!(
            honest,
            HonestClientStats {
                failure: Some("HTTP/1.1 503".to_owned()),
                ..HonestClientStats::new(7, 1, Some(1.5))
            }
        );
        assert_eq!(
            honest.summary(),
            "7 honest requests served, 1 failed (the first: HTTP/1.1 503), p99 1.5 ms"
        );
        assert!(!honest.is_unharmed());
        assert!(read("{}").is_err());
    }

    #[test]
    fn client_without_served_requests_is_harmed() {
        let honest = |served, failed| HonestClientStats::new(served, failed, None);
        assert!(honest(7, 0).is_unharmed());
        assert!(!honest(7, 1).is_unharmed());
        assert!(!honest(0, 0).is_unharmed());
    }
}
