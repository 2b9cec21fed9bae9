//! Pass criteria of attacks: the honest client's baseline, and the CPU time that the proxies may
//! spend on an attack.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;

use crate::suites::honest_client::{self, HonestClientStats};
use crate::suites::outcome::{Case, Outcome};
use crate::testbed::ProxyPair;

/// Maximum ratio of the honest client's p99 to its baseline.
const MAX_P99_RATIO: f64 = 3.0;
/// Lower bound of the baseline p99 in milliseconds; below it, noise of the machine dominates.
const MIN_BASELINE_P99: f64 = 1.0;
/// Maximum CPU seconds per 100 MB of an attack, for the proxy that spends more.
const MAX_COST: f64 = 1.0;
const COST_BYTES: f64 = 100e6;

/// The honest client without an attack.
pub(super) struct Baseline {
    honest: HonestClientStats,
    /// CPU seconds per request of each proxy. Unlike CPU use per second, it does not depend on the
    /// load of the machine.
    request: ProxyPair<f64>,
}

/// The result of one attack.
pub(super) struct AttackResult {
    pub(super) honest: HonestClientStats,
    pub(super) sent: AttackStats,
    /// CPU seconds of the proxy that spent more, without those for the honest client.
    pub(super) spent: f64,
}

/// The report of the attackers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AttackStats {
    bytes: u64,
    connections: u64,
    streams: u64,
    /// Error of the first connection that failed.
    failure: Option<String>,
}

/// The results of all attacks in one position.
pub(super) struct Report {
    table: String,
    cases: Vec<Case>,
    /// The maximum over all attacks.
    p99: Option<f64>,
    cost: Option<f64>,
    baseline: Option<f64>,
}

impl Baseline {
    pub(super) fn new(honest: HonestClientStats, used: ProxyPair<f64>) -> Self {
        let served = honest.served.max(1) as f64;
        let request = used.map(|used| used / served);
        Self { honest, request }
    }

    /// Subtracts the cost of the honest client and returns the CPU seconds of the proxy with more.
    pub(super) fn subtracted(&self, used: ProxyPair<f64>, meanwhile: &HonestClientStats) -> f64 {
        let served = meanwhile.served as f64;
        let attack = used
            .zip(self.request)
            .map(|(used, request)| used - request * served);
        attack.outbound.max(attack.inbound).max(0.0)
    }

    /// Returns the maximum p99 during an attack.
    fn max_p99(&self) -> f64 {
        MAX_P99_RATIO * self.honest.p99.unwrap_or_default().max(MIN_BASELINE_P99)
    }
}

impl AttackResult {
    /// Returns CPU seconds per 100 MB; `None` if no bytes were sent.
    fn cost(&self) -> Option<f64> {
        let bytes = self.sent.bytes as f64;
        (bytes > 0.0).then(|| self.spent / bytes * COST_BYTES)
    }

    /// Returns whether the honest client and the CPU cost are within the limits.
    fn is_within(&self, baseline: &Baseline) -> bool {
        let is_quick = self.honest.p99.is_some_and(|p99| p99 <= baseline.max_p99());
        let is_cheap = self.cost().is_some_and(|cost| cost < MAX_COST);
        self.honest.is_unharmed() && is_quick && is_cheap
    }
}

impl AttackStats {
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        let report: Value =
            serde_json::from_str(text).with_context(|| format!("{text:?} is JSON"))?;
        let count = |name: &str| {
            report[name]
                .as_u64()
                .with_context(|| format!("{name} in {report}"))
        };
        Ok(Self {
            bytes: count("bytes")?,
            connections: count("connections")?,
            streams: count("streams")?,
            failure: report["failure"].as_str().map(str::to_owned),
        })
    }

    fn megabytes(&self) -> u64 {
        self.bytes / 1_000_000
    }
}

impl Report {
    pub(super) fn new(baseline: &Baseline) -> Self {
        let table = format!(
            "Alone: {}. At most {:.1} ms and {MAX_COST} CPU seconds for 100 MB.\n\n\
             | attack | MB | connections | streams | honest requests failed | p99, ms | CPU seconds | for 100 MB |\n\
             |---|---|---|---|---|---|---|---|\n",
            baseline.honest.summary(),
            baseline.max_p99(),
        );
        Self {
            table,
            cases: Vec::new(),
            p99: None,
            cost: None,
            baseline: baseline.honest.p99,
        }
    }

    pub(super) fn add(
        &mut self,
        attack: &str,
        baseline: &Baseline,
        seen: anyhow::Result<AttackResult>,
    ) {
        let (passed, message) = match &seen {
            Ok(seen) => (seen.is_within(baseline), self.row(attack, baseline, seen)),
            Err(error) => (false, format!("{error:#}")),
        };
        self.cases.push(Case {
            name: attack.to_owned(),
            passed,
            message,
        });
    }

    /// Adds a line to the table and returns the same as text.
    fn row(&mut self, attack: &str, baseline: &Baseline, seen: &AttackResult) -> String {
        let (honest, sent, cost) = (&seen.honest, &seen.sent, seen.cost());
        let number = |value: Option<f64>| value.map_or("none".to_owned(), |v| format!("{v:.2}"));
        self.p99 = larger(self.p99, honest.p99);
        self.cost = larger(self.cost, cost);
        let (connections, streams) = (sent.connections, sent.streams);
        // Writing to a string does not fail.
        let _written = writeln!(
            self.table,
            "| {attack} | {} | {connections} | {streams} | {} | {} | {:.2} | {} |",
            sent.megabytes(),
            honest.failed,
            number(honest.p99),
            seen.spent,
            number(cost),
        );
        let mut text = format!(
            "{} of at most {:.1} ms; {} MB over {connections} connections, {} of less than {MAX_COST} CPU seconds for 100 MB",
            honest.summary(),
            baseline.max_p99(),
            sent.megabytes(),
            number(cost),
        );
        if let Some(failure) = &sent.failure {
            text += &format!("; connections were not made (the first: {failure})");
        }
        text
    }

    pub(super) fn write(self, file: PathBuf) -> anyhow::Result<Outcome> {
        fs::write(&file, &self.table).with_context(|| format!("write {}", file.display()))?;
        let cost = self.cost;
        let cost = cost.map_or("no".to_owned(), |cost| format!("{cost:.2}"));
        Ok(Outcome {
            cases: self.cases,
            file,
            note: Some(format!(
                "p99 of the honest client {}, before {}; {cost} CPU seconds for 100 MB",
                honest_client::time(self.p99),
                honest_client::time(self.baseline)
            )),
        })
    }
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn honest(failed: u64, p99: f64) -> HonestClientStats {
        HonestClientStats::new(7, failed, Some(p99))
    }

    /// One second of the outbound proxy and two of the inbound proxy for seven requests.
    fn baseline_of(p99: f64) -> Baseline {
        Baseline::new(honest(0, p99), ProxyPair::new(1.0, 2.0))
    }

    fn seen(failed: u64, p99: f64, bytes: u64, spent: f64) -> AttackResult {
        AttackResult {
            honest: honest(failed, p99),
            sent: AttackStats {
                bytes,
                connections: 8,
                streams: 80,
                failure: None,
            },
            spent,
        }
    }

    #[test]
    fn attacker_report_is_parsed() {
        let text = r#"{"bytes": 5000000, "connections": 3, "streams": 4, "failed": 1, "failure": "refused", "seconds": 15.0}"#;
        let expected = AttackStats {
            bytes: 5_000_000,
            connections: 3,
            streams: 4,
            failure: Some("refused".to_owned()),
        };
        let read = AttackStats::read(text).expect("an attacker's report");
        assert_eq!(read, expected);
        assert_eq!(expected.megabytes(), 5);
        assert!(AttackStats::read("{}").is_err());
    }

    #[test]
    fn honest_client_cpu_is_subtracted_from_attack_cost() {
        let cases = [(3.0, 3.0, 2.0), (1.0, 7.0, 5.0), (0.5, 1.0, 0.0)];
        for (outbound, inbound, expected) in cases {
            let used = ProxyPair::new(outbound, inbound);
            let spent = baseline_of(0.5).subtracted(used, &honest(0, 0.5));
            assert!((spent - expected).abs() < 1e-9, "{used:?}: {spent}");
        }
    }

    #[test]
    fn attack_passes_only_within_all_limits() {
        let mb = 1_000_000;
        for (alone_p99, seen, expected) in [
            (0.2, seen(0, 3.0, 100 * mb, 0.99), true),
            (0.2, seen(0, 3.1, 100 * mb, 0.99), false),
            (2.0, seen(0, 5.9, 100 * mb, 0.99), true),
            (2.0, seen(0, 6.1, 100 * mb, 0.99), false),
            (0.2, seen(1, 0.2, 100 * mb, 0.99), false),
            (0.2, seen(0, 0.2, 100 * mb, 1.0), false),
            (0.2, seen(0, 0.2, 200 * mb, 1.9), true),
            // An attack that sent nothing fails.
            (0.2, seen(0, 0.2, 0, 0.0), false),
        ] {
            let passed = seen.is_within(&baseline_of(alone_p99));
            assert_eq!(passed, expected, "{}", seen.spent);
        }
    }

    #[test]
    fn report_table_has_row_per_completed_attack() {
        let baseline = baseline_of(0.5);
        let mut report = Report::new(&baseline);
        report.add("ping-flood", &baseline, Ok(seen(0, 0.6, 200_000_000, 1.0)));
        report.add("rapid-reset", &baseline, Ok(seen(0, 3.5, 100_000_000, 0.1)));
        report.add("hpack-bomb", &baseline, Err(anyhow::anyhow!("refused")));
        let directory = tempfile::tempdir().expect("a directory");
        let outcome = report.write(directory.path().join("summary.md"));
        let outcome = outcome.expect("it can be written");
        let table = fs::read_to_string(&outcome.file).expect("it was written");
        let rows: Vec<&str> = table.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| ping-flood | 200 | 8 | 80 | 0 | 0.60 | 1.00 | 0.50 |",
                "| rapid-reset | 100 | 8 | 80 | 0 | 3.50 | 0.10 | 0.10 |",
            ]
        );
        let passed: Vec<bool> = outcome.cases.iter().map(|case| case.passed).collect();
        assert_eq!(passed, [true, false, false]);
        assert_eq!(
            outcome.cases[1].message,
            "7 honest requests served, 0 failed, p99 3.5 ms of at most 3.0 ms; 100 MB over 8 connections, 0.10 of less than 1 CPU seconds for 100 MB"
        );
        assert_eq!(outcome.cases[2].message, "refused");
        let note = "p99 of the honest client 3.5 ms, before 0.5 ms; 0.50 CPU seconds for 100 MB";
        assert_eq!(outcome.note.as_deref(), Some(note));
    }
}
