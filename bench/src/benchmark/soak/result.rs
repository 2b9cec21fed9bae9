//! The result of a soak and its pass criteria.

use std::fmt;

use super::super::statistics::median;
use super::ROTATIONS;
use crate::testbed::ProxyPair;
use crate::testbed::usage::Memory;

/// Maximum growth of resident memory between the second and the last fifth of the time.
const MAX_DRIFT: f64 = 0.02;

/// Readings of the proxies after a piece of load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    pub(super) requests: u64,
    pub(super) failed: u64,
    /// Seconds.
    pub(super) p99: Option<f64>,
    pub(super) memory: ProxyPair<Memory>,
    pub(super) files: ProxyPair<usize>,
    /// Certificates that each proxy has obtained so far.
    pub(super) certificates: ProxyPair<u64>,
}

#[derive(Debug, PartialEq)]
pub(super) struct SoakResult {
    requests: u64,
    failed: u64,
    /// Relative growth of resident memory.
    drift: ProxyPair<f64>,
    /// Open files before and after.
    files: ProxyPair<(f64, f64)>,
    /// Certificate renewals.
    rotations: ProxyPair<u64>,
}

impl SoakResult {
    /// `failed` are requests that failed before the first reading.
    pub(super) fn new(failed: u64, readings: Vec<Reading>) -> Self {
        let median_of_fifth = |number: usize, value: fn(&Reading) -> f64| {
            let values: Vec<f64> = fifth(&readings, number).iter().map(value).collect();
            median(&values).unwrap_or(f64::NAN)
        };
        let early_and_late =
            |value: fn(&Reading) -> f64| (median_of_fifth(1, value), median_of_fifth(4, value));
        let resident = ProxyPair::new(
            early_and_late(|reading| reading.memory.outbound.resident as f64),
            early_and_late(|reading| reading.memory.inbound.resident as f64),
        );
        let files = ProxyPair::new(
            early_and_late(|reading| reading.files.outbound as f64),
            early_and_late(|reading| reading.files.inbound as f64),
        );
        let certificates = readings.last().map(|reading| reading.certificates);
        Self {
            requests: readings.iter().map(|reading| reading.requests).sum(),
            failed: failed + readings.iter().map(|reading| reading.failed).sum::<u64>(),
            drift: resident.map(|(early, late)| late / early - 1.0),
            files,
            // The first certificate is not a renewal.
            rotations: certificates
                .unwrap_or_default()
                .map(|count: u64| count.saturating_sub(1)),
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
                format!("{requests} requests, {failed} failed"),
            ),
            (
                drift.outbound <= MAX_DRIFT && drift.inbound <= MAX_DRIFT,
                format!(
                    "resident memory grew by {:.1} % (out) and {:.1} % (in); {:.0} % are allowed",
                    drift.outbound * 100.0,
                    drift.inbound * 100.0,
                    MAX_DRIFT * 100.0
                ),
            ),
            (
                flat(files.outbound) && flat(files.inbound),
                format!(
                    "open files: {} before and {} after (out), {} and {} (in)",
                    files.outbound.0, files.outbound.1, files.inbound.0, files.inbound.1
                ),
            ),
            (
                rotations.outbound.min(rotations.inbound) >= u64::from(ROTATIONS),
                format!(
                    "certificates were renewed {} times (out) and {} times (in), expected {ROTATIONS}; the trust anchor was rotated once",
                    rotations.outbound, rotations.inbound
                ),
            ),
        ]
    }

    pub(super) fn holds(&self) -> bool {
        self.claims().iter().all(|(holds, _)| *holds)
    }
}

/// Returns one of five equal parts.
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
            mib(self.memory.outbound),
            mib(self.memory.inbound),
            self.files.outbound,
            self.files.inbound,
            self.certificates.outbound,
            self.certificates.inbound
        )
    }
}

impl fmt::Display for SoakResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (holds, claim) in self.claims() {
            let mark = if holds { "holds " } else { "MISSED" };
            writeln!(f, "{mark}  {claim}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixty readings; the values change from the first to the second of each pair halfway.
    fn readings(resident: (u64, u64), files: (usize, usize)) -> Vec<Reading> {
        (0..60)
            .map(|piece| {
                let late = piece >= 30;
                let resident = if late { resident.1 } else { resident.0 };
                let files = if late { files.1 } else { files.0 };
                let certificates = 1 + piece / 2;
                Reading {
                    requests: 1000,
                    failed: 0,
                    p99: Some(0.001),
                    memory: ProxyPair::new(100, resident).map(|resident| Memory {
                        resident,
                        anonymous: 1,
                    }),
                    files: ProxyPair::new(files, 10),
                    certificates: ProxyPair::new(certificates, certificates),
                }
            })
            .collect()
    }

    #[test]
    fn growing_memory_or_file_count_fails_soak() {
        let holds = |readings| SoakResult::new(0, readings).holds();
        assert!(holds(readings((1000, 1019), (50, 50))));
        assert!(holds(readings((1000, 900), (50, 40))));
        assert!(!holds(readings((1000, 1021), (50, 50))));
        assert!(!holds(readings((1000, 1000), (50, 51))));
    }

    #[test]
    fn single_failed_request_fails_soak() {
        let good = || readings((1000, 1000), (50, 50));
        assert!(!SoakResult::new(1, good()).holds());
        let mut bad = good();
        bad[7].failed = 1;
        assert!(!SoakResult::new(0, bad).holds());
    }

    #[test]
    fn missing_certificate_rotations_fail_soak() {
        let mut short = readings((1000, 1000), (50, 50));
        short.truncate(50);
        assert!(!SoakResult::new(0, short).holds());
    }
}
