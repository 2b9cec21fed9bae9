//! Exemplars: for each bucket of a histogram the last observation that belongs to a trace. Data
//! threads write them, and scrapes read them.
//!
//! A slot is a sequence lock that no thread waits for: a writer that finds another one writing
//! skips its exemplar, and a reader that finds a writer omits the exemplar from this scrape. An
//! exemplar is a sample of many, so that a missing one does not matter.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU64, fence};

/// The span that a value was observed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// The trace, as a number whose most significant byte comes first in texts.
    pub trace_id: u128,
    /// The span, likewise.
    pub span_id: u64,
    /// When the value was observed.
    pub at: SystemTime,
}

/// Whether the buckets of a family's histograms keep exemplars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exemplars {
    /// They do not, and take no memory for them.
    Off,
    /// Each bucket keeps the last one, which takes 48 bytes.
    Kept,
}

/// The last exemplar of one bucket.
#[derive(Debug, Default)]
pub(super) struct ExemplarSlot {
    /// 0 while the slot is empty, odd while it is being written. Protects the other fields.
    version: AtomicU64,
    trace_high: AtomicU64,
    trace_low: AtomicU64,
    span: AtomicU64,
    /// The bits of an `f64`.
    value: AtomicU64,
    millis: AtomicU64,
}

/// An exemplar with the observed value, as a scrape reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StoredExemplar {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) value: f64,
    /// Milliseconds since 1970.
    pub(super) millis: u64,
}

impl ExemplarSlot {
    /// Replaces the exemplar, unless another thread is replacing it.
    pub(super) fn store(&self, value: f64, exemplar: &Exemplar) {
        let version = self.version.load(Relaxed);
        if is_being_written(version) {
            return;
        }
        let writing = version.wrapping_add(1);
        // Acquire: the writes of the previous writer come before those below.
        let locked = self
            .version
            .compare_exchange(version, writing, Acquire, Relaxed);
        if locked.is_err() {
            return;
        }
        // The odd version is visible before any of the fields.
        fence(Release);
        let [high, low] = halves(exemplar.trace_id);
        self.trace_high.store(high, Relaxed);
        self.trace_low.store(low, Relaxed);
        self.span.store(exemplar.span_id, Relaxed);
        self.value.store(value.to_bits(), Relaxed);
        self.millis.store(unix_millis(exemplar.at), Relaxed);
        self.version.store(writing.wrapping_add(1), Release);
    }

    /// Returns the exemplar, or `None` if there is none or it is being replaced.
    pub(super) fn load(&self) -> Option<StoredExemplar> {
        let version = self.version.load(Acquire);
        if version == 0 || is_being_written(version) {
            return None;
        }
        let high = self.trace_high.load(Relaxed);
        let low = self.trace_low.load(Relaxed);
        let stored = StoredExemplar {
            trace_id: u128::from(high) << 64 | u128::from(low),
            span_id: self.span.load(Relaxed),
            value: f64::from_bits(self.value.load(Relaxed)),
            millis: self.millis.load(Relaxed),
        };
        // The fields were read before the version is read again.
        fence(Acquire);
        (self.version.load(Relaxed) == version).then_some(stored)
    }
}

fn is_being_written(version: u64) -> bool {
    version % 2 == 1
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half of the number is meant"
)]
fn halves(number: u128) -> [u64; 2] {
    [(number >> 64) as u64, number as u64]
}

/// Returns 0 for a time before 1970, which only a wrong clock shows.
fn unix_millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    /// An exemplar whose numbers all follow from `n`.
    fn numbered(n: u64) -> (f64, Exemplar) {
        let exemplar = Exemplar {
            trace_id: u128::from(n) << 64 | u128::from(!n),
            span_id: n,
            at: UNIX_EPOCH + Duration::from_millis(n),
        };
        (n as f64, exemplar)
    }

    #[test]
    fn last_exemplar_is_kept_with_its_value() {
        let slot = ExemplarSlot::default();
        assert_eq!(slot.load(), None);
        for n in [7, 8] {
            let (value, exemplar) = numbered(n);
            slot.store(value, &exemplar);
        }
        let expected = StoredExemplar {
            trace_id: 8 << 64 | u128::from(!8_u64),
            span_id: 8,
            value: 8.0,
            millis: 8,
        };
        assert_eq!(slot.load(), Some(expected));
    }

    #[test]
    fn slot_that_is_being_written_is_neither_read_nor_written() {
        let slot = ExemplarSlot::default();
        let (value, exemplar) = numbered(1);
        slot.store(value, &exemplar);
        // Another thread has begun to write.
        slot.version.fetch_add(1, Relaxed);
        assert_eq!(slot.load(), None);
        let (value, exemplar) = numbered(2);
        slot.store(value, &exemplar);
        slot.version.fetch_add(1, Relaxed);
        assert_eq!(slot.load().map(|stored| stored.span_id), Some(1));
    }

    #[test]
    fn fields_of_different_exemplars_are_never_mixed() {
        let slot = ExemplarSlot::default();
        let done = AtomicBool::new(false);
        let slot = &slot;
        std::thread::scope(|scope| {
            let writers = [1, 2].map(|first| {
                scope.spawn(move || {
                    for n in (first..100_000).step_by(2) {
                        let (value, exemplar) = numbered(n);
                        slot.store(value, &exemplar);
                    }
                })
            });
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let Some(stored) = slot.load() else {
                        continue;
                    };
                    let n = stored.span_id;
                    let (value, exemplar) = numbered(n);
                    let expected = StoredExemplar {
                        trace_id: exemplar.trace_id,
                        span_id: n,
                        value,
                        millis: n,
                    };
                    assert_eq!(stored, expected);
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Relaxed);
        });
        assert!(slot.load().is_some());
    }

    #[test]
    fn time_before_1970_counts_as_1970() {
        assert_eq!(unix_millis(UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}
