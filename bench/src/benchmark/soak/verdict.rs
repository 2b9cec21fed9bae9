//! What a soak found out, and whether it is good enough.

use std::fmt;

use super::{super::statistics::median, ROTATIONS};
use crate::testbed::{Both, usage::Memory};

/// Of resident memory, between the second and the last fifth of the time.
const MAX_DRIFT: f64 = 0.02;

/// The proxies after a piece of the load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    pub(super) requests: u64,
    pub(super) failed: u64,
    /// Seconds.
    pub(super) p99: Option<f64>,
    pub(super) memory: Both<Memory>,
    pub(super) files: Both<usize>,
    /// That each proxy got so far.
    pub(super) certificates: Both<u64>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    requests: u64,
    failed: u64,
    /// Share by which resident memory grew.
    drift: Both<f64>,
    /// Open files before and after.
    files: Both<(f64, f64)>,
    /// Certificates that replaced another.
    rotations: Both<u64>,
}

impl Verdict {
    /// `failed` are requests that failed before the first reading.
    pub(super) fn new(failed: u64, readings: Vec<Reading>) -> Self {
        let middle = |number: usize, value: fn(&Reading) -> f64| {
            let values: Vec<f64> = fifth(&readings, number).iter().map(value).collect();
            median(&values).unwrap_or(f64::NAN)
        };
        let early_and_late = |out: fn(&Reading) -> f64, inward: fn(&Reading) -> f64| Both {
            out: (middle(1, out), middle(4, out)),
            inward: (middle(1, inward), middle(4, inward)),
        };
        let resident = early_and_late(
            |reading| reading.memory.out.resident as f64,
            |reading| reading.memory.inward.resident as f64,
        );
        let files = early_and_late(
            |reading| reading.files.out as f64,
            |reading| reading.files.inward as f64,
        );
        let growth = |(early, late): (f64, f64)| late / early - 1.0;
        let first_one = |count: u64| count.saturating_sub(1);
        let last = readings.last().map(|reading| reading.certificates);
        Self {
            requests: readings.iter().map(|reading| reading.requests).sum(),
            failed: failed + readings.iter().map(|reading| reading.failed).sum::<u64>(),
            drift: Both {
                out: growth(resident.out),
                inward: growth(resident.inward),
            },
            files,
            rotations: Both {
                out: last.map_or(0, |both| first_one(both.out)),
                inward: last.map_or(0, |both| first_one(both.inward)),
            },
        }
    }

    fn claims(&self) -> [(bool, String); 4] {
        let Self {
            requests,
            failed,
            drift,
            files,
            rotations,
        } = self;
        let flat = |(before, after): (f64, f64)| after <= before;
        [
            (
                *failed == 0 && *requests > 0,
                format!("{requests} requests, {failed} of which failed"),
            ),
            (
                drift.out <= MAX_DRIFT && drift.inward <= MAX_DRIFT,
                format!(
                    "resident memory grew by {:.1} % (out) and {:.1} % (in); {:.0} % are allowed",
                    drift.out * 100.0,
                    drift.inward * 100.0,
                    MAX_DRIFT * 100.0
                ),
            ),
            (
                flat(files.out) && flat(files.inward),
                format!(
                    "open files: {} before and {} after (out), {} and {} (in)",
                    files.out.0, files.out.1, files.inward.0, files.inward.1
                ),
            ),
            (
                rotations.out.min(rotations.inward) >= u64::from(ROTATIONS),
                format!(
                    "certificates were replaced {} times (out) and {} times (in), of {ROTATIONS}; the trust anchor once",
                    rotations.out, rotations.inward
                ),
            ),
        ]
    }

    pub(super) fn holds(&self) -> bool {
        self.claims().iter().all(|(holds, _)| *holds)
    }
}

/// One of five equal parts.
fn fifth(readings: &[Reading], number: usize) -> &[Reading] {
    let (from, to) = (
        readings.len() * number / 5,
        readings.len() * (number + 1) / 5,
    );
    &readings[from..to]
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |memory: Memory| memory.resident as f64 / f64::from(1 << 20);
        write!(
            f,
            "{:10} {:6} {:9.2} {:6.1}/{:<6.1} {:>4}/{:<4} {:>5}/{}",
            self.requests,
            self.failed,
            self.p99.unwrap_or(f64::NAN) * 1e3,
            mib(self.memory.out),
            mib(self.memory.inward),
            self.files.out,
            self.files.inward,
            self.certificates.out,
            self.certificates.inward
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (holds, said) in self.claims() {
            let mark = if holds { "holds " } else { "MISSED" };
            writeln!(f, "{mark}  {said}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour in which a value went from one to another.
    fn readings(resident: (u64, u64), files: (usize, usize)) -> Vec<Reading> {
        (0..60)
            .map(|piece| {
                let memory = |resident| Memory {
                    resident,
                    anonymous: 1,
                };
                let late = piece >= 30;
                let resident = if late { resident.1 } else { resident.0 };
                let files = if late { files.1 } else { files.0 };
                let certificates = 1 + piece / 2;
                Reading {
                    requests: 1000,
                    failed: 0,
                    p99: Some(0.001),
                    memory: Both {
                        out: memory(100),
                        inward: memory(resident),
                    },
                    files: Both {
                        out: files,
                        inward: 10,
                    },
                    certificates: Both {
                        out: certificates,
                        inward: certificates,
                    },
                }
            })
            .collect()
    }

    #[test]
    fn what_grows_is_seen() {
        let holds = |readings| Verdict::new(0, readings).holds();
        assert!(holds(readings((1000, 1019), (50, 50))));
        assert!(holds(readings((1000, 900), (50, 40))));
        assert!(!holds(readings((1000, 1021), (50, 50))));
        assert!(!holds(readings((1000, 1000), (50, 51))));
    }

    #[test]
    fn one_failed_request_is_one_too_many() {
        let good = || readings((1000, 1000), (50, 50));
        assert!(!Verdict::new(1, good()).holds());
        let mut bad = good();
        bad[7].failed = 1;
        assert!(!Verdict::new(0, bad).holds());
    }

    #[test]
    fn every_certificate_has_to_come() {
        let mut short = readings((1000, 1000), (50, 50));
        short.truncate(50);
        assert!(!Verdict::new(0, short).holds());
    }
}
