//! The values of series, and the handles that the request path keeps.
//!
//! All atomics are relaxed: a scrape may see a request in one family and not yet in another, and
//! the sum of a histogram without the latest observation. The process makes no decision by these
//! numbers.

use std::sync::Arc;

use super::exemplar::{Exemplar, ExemplarSlot, Exemplars, StoredExemplar};
use super::native::{NativeCell, NativeSnapshot};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicI64, AtomicU64, OnceLock};

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

/// A distribution over fixed buckets, and over exponential ones for scrapers that ask for them.
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
    /// One for each bucket, if the family keeps exemplars.
    exemplars: Option<Box<[ExemplarSlot]>>,
    /// From the first scrape on that asks for them.
    native: OnceLock<NativeCell>,
}

/// The values of a histogram at the time of a scrape.
#[derive(Debug, PartialEq)]
pub(super) struct HistogramSnapshot {
    /// Upper bound and cumulative count.
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) count: u64,
    pub(super) sum: f64,
    /// By bucket, including the one of `+Inf`. Empty if the histogram keeps none.
    pub(super) exemplars: Vec<Option<StoredExemplar>>,
    /// Present if the scrape asks for it.
    pub(super) native: Option<NativeSnapshot>,
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

    /// As [`Histogram::observe`], and keeps the exemplar of the observation, if it has one and the
    /// family keeps them.
    pub fn observe_with(&self, value: f64, exemplar: Option<&Exemplar>) {
        let bucket = self.cell.observe(value);
        if let Some(exemplar) = exemplar {
            self.cell.keep(bucket, value, exemplar);
        }
    }

    /// Returns the number of observations.
    pub fn count(&self) -> u64 {
        self.cell.counts.iter().map(|c| c.load(Relaxed)).sum()
    }
}

impl HistogramCell {
    pub(super) fn new(bounds: &'static [f64], exemplars: Exemplars) -> Self {
        let buckets = 0..=bounds.len();
        Self {
            bounds,
            counts: buckets.clone().map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            exemplars: match exemplars {
                Exemplars::Off => None,
                Exemplars::Kept => Some(buckets.map(|_| ExemplarSlot::default()).collect()),
            },
            native: OnceLock::new(),
        }
    }

    /// Returns the index of the bucket that counts the value.
    fn observe(&self, value: f64) -> usize {
        // Most observations fall into the first buckets (a mesh's latencies), so that a linear
        // search is faster than a binary one.
        let bucket = self
            .bounds
            .iter()
            .position(|&bound| value <= bound)
            .unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        if let Some(native) = self.native.get() {
            native.observe(value);
        }
        if !value.is_nan() {
            let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
            // Never `Err`, because `add` always returns a value.
            let _ = self.sum.fetch_update(Relaxed, Relaxed, add);
        }
        bucket
    }

    // Not inlined, because few observations have an exemplar.
    #[cold]
    #[inline(never)]
    fn keep(&self, bucket: usize, value: f64, exemplar: &Exemplar) {
        if let Some(slots) = &self.exemplars {
            slots[bucket].store(value, exemplar);
        }
    }

    /// Returns the values with the exponential buckets. The first call begins to count in them.
    pub(super) fn snapshot_with_native(&self) -> HistogramSnapshot {
        let mut snapshot = self.snapshot();
        let native = self.native.get_or_init(|| {
            let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
            NativeCell::with(bounds.zip(self.counts.iter().map(|count| count.load(Relaxed))))
        });
        let native = native.snapshot();
        // Both kinds of buckets get the same count, since other threads change them in between.
        snapshot.count = native.count();
        for (_, cumulative) in &mut snapshot.buckets {
            *cumulative = snapshot.count.min(*cumulative);
        }
        snapshot.native = Some(native);
        snapshot
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        // Before the counts: an exemplar is stored after its observation is counted, so that no
        // bucket has an exemplar and a count of zero.
        let slots = self.exemplars.as_deref().unwrap_or_default();
        let exemplars = slots.iter().map(ExemplarSlot::load).collect();
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
            exemplars,
            native: None,
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn observations_are_counted_in_the_smallest_matching_bucket() {
        let histogram = Histogram {
            cell: Arc::new(HistogramCell::new(&[1.0, 5.0], Exemplars::Off)),
        };
        for value in [0.0, 1.0, 1.5, 5.0, 6.0, f64::NAN] {
            histogram.observe(value);
        }
        assert_eq!(
            histogram.cell.snapshot(),
            HistogramSnapshot {
                buckets: vec![(1.0, 2), (5.0, 4)],
                count: 6,
                sum: 13.5,
                exemplars: Vec::new(),
                native: None,
            }
        );
    }

    #[test]
    fn exponential_buckets_begin_with_the_first_scrape_that_asks_for_them() {
        let histogram = Histogram {
            cell: Arc::new(HistogramCell::new(&[1.0, 16.0], Exemplars::Off)),
        };
        for value in [0.5, 3.0, 20.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cell.snapshot().native, None);
        let before = [(0, 1), (32, 1), (193, 1)];
        for (value, buckets) in [
            (None, &before[..]),
            (Some(0.0), &before[..]),
            (Some(4.0), &[(0, 1), (16, 1), (32, 1), (193, 1)]),
            (Some(f64::NAN), &[(0, 1), (16, 1), (32, 1), (193, 2)]),
        ] {
            value.inspect(|value| histogram.observe(*value));
            let snapshot = histogram.cell.snapshot_with_native();
            let native = snapshot.native.unwrap();
            assert_eq!(native.buckets, buckets, "{value:?}");
            assert_eq!(native.count(), snapshot.count);
            assert_eq!(snapshot.count, histogram.count());
        }
        let snapshot = histogram.cell.snapshot_with_native();
        assert_eq!(snapshot.buckets, [(1.0, 2), (16.0, 4)]);
        assert_eq!(histogram.cell.snapshot().native, None);
    }

    #[test]
    fn each_bucket_keeps_its_last_exemplar() {
        let observe = |exemplars| {
            let histogram = Histogram {
                cell: Arc::new(HistogramCell::new(&[1.0, 5.0], exemplars)),
            };
            histogram.observe_with(0.5, None);
            for (value, span_id) in [(2.0, 1), (3.0, 2), (9.0, 3)] {
                let exemplar = Exemplar {
                    trace_id: 7,
                    span_id,
                    at: UNIX_EPOCH + Duration::from_millis(span_id),
                };
                histogram.observe_with(value, Some(&exemplar));
            }
            histogram.observe(4.0);
            histogram.cell.snapshot()
        };
        let kept = observe(Exemplars::Kept);
        let stored = |span_id, value| {
            Some(StoredExemplar {
                trace_id: 7,
                span_id,
                value,
                millis: span_id,
            })
        };
        assert_eq!(kept.exemplars, [None, stored(2, 3.0), stored(3, 9.0)]);
        let off = observe(Exemplars::Off);
        assert_eq!(off.exemplars, []);
        for snapshot in [kept, off] {
            assert_eq!(snapshot.buckets, [(1.0, 1), (5.0, 4)]);
            assert_eq!((snapshot.count, snapshot.sum), (5, 18.5));
        }
    }

    #[test]
    fn concurrent_updates_are_all_counted() {
        let counter = Counter {
            cell: Arc::default(),
        };
        let histogram = Histogram {
            cell: Arc::new(HistogramCell::new(&[10.0], Exemplars::Off)),
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
