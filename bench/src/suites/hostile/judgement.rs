//! What attacks are held against: what the honest client sees and costs without them, and what may
//! be spent on what they send.

use std::{fmt::Write, fs, path::PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::{
    suites::{
        honest::{self, Honest},
        outcome::{Case, Outcome},
    },
    testbed::Both,
};

/// The honest client's p99 may be so many times what it is alone,
const SLOWER: f64 = 3.0;
/// which counts as so many milliseconds where it is less: below, the machine's own work decides.
const LEAST_P99: f64 = 1.0;
/// CPU seconds that 100 MB of an attack may cost the proxy that it costs more.
const COST: f64 = 1.0;
const BYTES: f64 = 100e6;

/// The honest client without an attack.
pub(super) struct Alone {
    honest: Honest,
    /// CPU seconds that a request of its costs the proxies. Not a second: on a busy machine it
    /// takes longer, and costs the same.
    request: Both<f64>,
}

/// What came of one attack.
pub(super) struct Seen {
    pub(super) honest: Honest,
    pub(super) sent: Sent,
    /// CPU seconds of the proxy that spent more, without those that the honest client costs.
    pub(super) spent: f64,
}

/// What the attackers did.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    bytes: u64,
    connections: u64,
    streams: u64,
    /// Why the first of the connections failed that were not made.
    failure: Option<String>,
}

/// Of all attacks in one position.
pub(super) struct Report {
    table: String,
    cases: Vec<Case>,
    /// The largest of all.
    p99: Option<f64>,
    cost: Option<f64>,
    alone: Option<f64>,
}

impl Alone {
    pub(super) fn new(honest: Honest, used: Both<f64>) -> Self {
        let served = honest.served.max(1) as f64;
        let request = Both {
            out: used.out / served,
            inward: used.inward / served,
        };
        Self { honest, request }
    }

    /// What is left of the CPU seconds of one proxy, the one with more, without what the honest
    /// client cost meanwhile.
    pub(super) fn subtracted(&self, used: Both<f64>, meanwhile: &Honest) -> f64 {
        let served = meanwhile.served as f64;
        let out = used.out - self.request.out * served;
        let inward = used.inward - self.request.inward * served;
        out.max(inward).max(0.0)
    }

    /// The p99 that an attack may bring about.
    fn most(&self) -> f64 {
        SLOWER * self.honest.p99.unwrap_or_default().max(LEAST_P99)
    }
}

impl Seen {
    /// CPU seconds for 100 MB; none when nothing was sent.
    fn cost(&self) -> Option<f64> {
        let bytes = self.sent.bytes as f64;
        (bytes > 0.0).then(|| self.spent / bytes * BYTES)
    }

    /// Whether the honest client is served as well as it was, and the attack is cheap.
    fn is_within(&self, alone: &Alone) -> bool {
        let is_quick = self.honest.p99.is_some_and(|p99| p99 <= alone.most());
        let is_cheap = self.cost().is_some_and(|cost| cost < COST);
        self.honest.is_unharmed() && is_quick && is_cheap
    }
}

impl Sent {
    pub(super) fn read(said: &str) -> anyhow::Result<Self> {
        let said: Value =
            serde_json::from_str(said).with_context(|| format!("{said:?} is JSON"))?;
        let count = |name: &str| {
            said[name]
                .as_u64()
                .with_context(|| format!("{name} in {said}"))
        };
        Ok(Self {
            bytes: count("bytes")?,
            connections: count("connections")?,
            streams: count("streams")?,
            failure: said["failure"].as_str().map(str::to_owned),
        })
    }

    fn megabytes(&self) -> u64 {
        self.bytes / 1_000_000
    }
}

impl Report {
    pub(super) fn new(alone: &Alone) -> Self {
        let table = format!(
            "Alone: {}. At most {:.1} ms and {COST} CPU seconds for 100 MB.\n\n\
             | attack | MB | connections | streams | honest requests failed | p99, ms | CPU seconds | for 100 MB |\n\
             |---|---|---|---|---|---|---|---|\n",
            alone.honest.said(),
            alone.most(),
        );
        Self {
            table,
            cases: Vec::new(),
            p99: None,
            cost: None,
            alone: alone.honest.p99,
        }
    }

    pub(super) fn add(&mut self, attack: &str, alone: &Alone, seen: anyhow::Result<Seen>) {
        let (passed, said) = match &seen {
            Ok(seen) => (seen.is_within(alone), self.row(attack, alone, seen)),
            Err(error) => (false, format!("{error:#}")),
        };
        self.cases.push(Case {
            name: attack.to_owned(),
            passed,
            said,
        });
    }

    /// Adds a line to the table, and says the same in words.
    fn row(&mut self, attack: &str, alone: &Alone, seen: &Seen) -> String {
        let (honest, sent, cost) = (&seen.honest, &seen.sent, seen.cost());
        let number = |value: Option<f64>| value.map_or("none".to_owned(), |v| format!("{v:.2}"));
        self.p99 = larger(self.p99, honest.p99);
        self.cost = larger(self.cost, cost);
        let (connections, streams) = (sent.connections, sent.streams);
        // To a string that never fails.
        let _written = writeln!(
            self.table,
            "| {attack} | {} | {connections} | {streams} | {} | {} | {:.2} | {} |",
            sent.megabytes(),
            honest.failed,
            number(honest.p99),
            seen.spent,
            number(cost),
        );
        let mut said = format!(
            "{} of at most {:.1} ms; {} MB over {connections} connections, {} of less than {COST} CPU seconds for 100 MB",
            honest.said(),
            alone.most(),
            sent.megabytes(),
            number(cost),
        );
        if let Some(failure) = &sent.failure {
            said += &format!("; connections were not made (the first: {failure})");
        }
        said
    }

    pub(super) fn write(self, file: PathBuf) -> anyhow::Result<Outcome> {
        fs::write(&file, &self.table).with_context(|| format!("write {}", file.display()))?;
        let cost = self
            .cost
            .map_or("no".to_owned(), |cost| format!("{cost:.2}"));
        Ok(Outcome {
            cases: self.cases,
            file,
            note: Some(format!(
                "p99 of the honest client {}, before {}; {cost} CPU seconds for 100 MB",
                honest::time(self.p99),
                honest::time(self.alone)
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

    fn honest(failed: u64, p99: f64) -> Honest {
        Honest {
            served: 7,
            failed,
            failure: None,
            p99: Some(p99),
        }
    }

    /// A second of the outbound proxy and two of the inbound one for seven requests.
    fn alone(p99: f64) -> Alone {
        let used = Both {
            out: 1.0,
            inward: 2.0,
        };
        Alone::new(honest(0, p99), used)
    }

    fn seen(failed: u64, p99: f64, bytes: u64, spent: f64) -> Seen {
        Seen {
            honest: honest(failed, p99),
            sent: Sent {
                bytes,
                connections: 8,
                streams: 80,
                failure: None,
            },
            spent,
        }
    }

    #[test]
    fn what_attackers_say_is_read() {
        let said = r#"{"bytes": 5000000, "connections": 3, "streams": 4, "failed": 1, "failure": "refused", "seconds": 15.0}"#;
        let expected = Sent {
            bytes: 5_000_000,
            connections: 3,
            streams: 4,
            failure: Some("refused".to_owned()),
        };
        assert_eq!(Sent::read(said).expect("an attacker's words"), expected);
        assert_eq!(expected.megabytes(), 5);
        assert!(Sent::read("{}").is_err());
    }

    #[test]
    fn the_honest_client_is_not_charged_to_the_attack() {
        let used = |out, inward| Both { out, inward };
        let cases = [
            (used(3.0, 3.0), 2.0),
            (used(1.0, 7.0), 5.0),
            (used(0.5, 1.0), 0.0),
        ];
        for (used, expected) in cases {
            let left = alone(0.5).subtracted(used, &honest(0, 0.5));
            assert!((left - expected).abs() < 1e-9, "{used:?}: {left}");
        }
    }

    #[test]
    fn every_target_is_a_limit() {
        let mb = 1_000_000;
        for (alone_p99, seen, expected) in [
            (0.2, seen(0, 3.0, 100 * mb, 0.99), true),
            (0.2, seen(0, 3.1, 100 * mb, 0.99), false),
            (2.0, seen(0, 5.9, 100 * mb, 0.99), true),
            (2.0, seen(0, 6.1, 100 * mb, 0.99), false),
            (0.2, seen(1, 0.2, 100 * mb, 0.99), false),
            (0.2, seen(0, 0.2, 100 * mb, 1.0), false),
            (0.2, seen(0, 0.2, 200 * mb, 1.9), true),
            // An attack that could not be made is none.
            (0.2, seen(0, 0.2, 0, 0.0), false),
        ] {
            assert_eq!(
                seen.is_within(&alone(alone_p99)),
                expected,
                "{}",
                seen.spent
            );
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_attack_that_was_made() {
        let alone = alone(0.5);
        let mut report = Report::new(&alone);
        report.add("ping-flood", &alone, Ok(seen(0, 0.6, 200_000_000, 1.0)));
        report.add("rapid-reset", &alone, Ok(seen(0, 3.5, 100_000_000, 0.1)));
        report.add("hpack-bomb", &alone, Err(anyhow::anyhow!("refused")));
        let folder = tempfile::tempdir().expect("a folder");
        let outcome = report.write(folder.path().join("summary.md"));
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
            outcome.cases[1].said,
            "7 honest requests served, 0 failed, p99 3.5 ms of at most 3.0 ms; 100 MB over 8 connections, 0.10 of less than 1 CPU seconds for 100 MB"
        );
        assert_eq!(outcome.cases[2].said, "refused");
        assert_eq!(
            outcome.note.as_deref(),
            Some("p99 of the honest client 3.5 ms, before 0.5 ms; 0.50 CPU seconds for 100 MB")
        );
    }
}
