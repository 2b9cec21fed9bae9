//! The values of series, and the handles that the request path keeps.
//!
//! All atomics are relaxed: a scrape may see a request in one family and not yet in another, and
//! the sum of a histogram without the latest observation. The process makes no decision by these
//! numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};

/// A monotonically increasing number.
#[derive(Clone, Debug)]
pub struct Counter {
    pub(super) cell: Arc<AtomicU64>,
}

/// A number that increases and decreases.
#[derive(Clone, Debug)]
pub struct Gauge {
    pub(super) cell: Arc<AtomicI64>,
}

/// A distribution over fixed buckets.
#[derive(Clone, Debug)]
pub struct Histogram {
    pub(super) cell: Arc<HistogramCell>,
}

#[derive(Debug)]
pub(super) struct HistogramCell {
    bounds: &'static [f64],
    /// Observations per bucket, not cumulative; the last one is `+Inf`.
    counts: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

/// The values of a histogram at the time of a scrape.
#[derive(Debug, PartialEq)]
pub(super) struct HistogramSnapshot {
    /// Upper bound and cumulative count.
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) count: u64,
    pub(super) sum: f64,
}

impl Counter {
    pub fn inc(&self) {
        self.inc_by(1);
    }

    pub fn inc_by(&self, n: u64) {
        self.cell.fetch_add(n, Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.cell.load(Relaxed)
    }
}

impl Gauge {
    pub fn set(&self, value: i64) {
        self.cell.store(value, Relaxed);
    }

    pub fn add(&self, n: i64) {
        self.cell.fetch_add(n, Relaxed);
    }

    pub fn sub(&self, n: i64) {
        self.cell.fetch_sub(n, Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    pub fn dec(&self) {
        self.sub(1);
    }

    pub fn value(&self) -> i64 {
        self.cell.load(Relaxed)
    }
}

impl Histogram {
    /// Records an observation. A NaN counts as `+Inf` and is not added to the sum.
    pub fn observe(&self, value: f64) {
        self.cell.observe(value);
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.cell.counts.iter().map(|c| c.load(Relaxed)).sum()
    }
}

impl HistogramCell {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    fn observe(&self, value: f64) {
        // Most observations fall into the first buckets (a mesh's latencies), so that a linear
        // search is faster than a binary one.
        let bucket = self
            .bounds
            .iter()
            .position(|&bound| value <= bound)
            .unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        if !value.is_nan() {
            let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
            // Never `Err`, because `add` always returns a value.
            let _ = self.sum.fetch_update(Relaxed, Relaxed, add);
        }
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let mut cumulative = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            cumulative += count.load(Relaxed);
            buckets.push((*bound, cumulative));
        }
        HistogramSnapshot {
            buckets,
            count: cumulative + self.counts[self.bounds.len()].load(Relaxed),
            sum: f64::from_bits(self.sum.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_are_counted_in_the_smallest_matching_bucket() {
        let histogram = Histogram {
            cell: Arc::new(HistogramCell::new(&[1.0, 5.0])),
        };
        for value in [0.0, 1.0, 1.5, 5.0, 6.0, f64::NAN] {
            histogram.observe(value);
        }
        assert_eq!(
            histogram.cell.snapshot(),
            HistogramSnapshot {
                buckets: vec![(1.0, 2), (5.0, 4)],
                count: 6,
                sum: 13.5
            }
        );
    }

    #[test]
    fn concurrent_updates_are_all_counted() {
        let counter = Counter {
            cell: Arc::default(),
        };
        let histogram = Histogram {
            cell: Arc::new(HistogramCell::new(&[10.0])),
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        counter.inc();
                        histogram.observe(0.5);
                    }
                });
            }
        });
        assert_eq!(counter.value(), 40_000);
        assert_eq!(histogram.cell.snapshot().sum, 20_000.0);
    }
}
