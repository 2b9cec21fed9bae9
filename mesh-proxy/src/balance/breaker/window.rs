//! The successes and requests of the last seconds, counted without a lock by all data threads.

use std::time::Duration;

use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

/// Counts requests in a sliding window of [`SLOTS`] parts, as Linkerd's proxy does. The oldest part
/// is forgotten as a whole.
#[derive(Debug)]
pub(super) struct SuccessWindow {
    /// The length of a part in nanoseconds.
    part: u64,
    /// Packed [`Slot`]s, at the index of their part modulo [`SLOTS`].
    slots: [AtomicU64; SLOTS as usize],
}

/// The counts of one part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// The number of the part since the start, modulo [`PARTS`].
    part: u64,
    successes: u32,
    total: u32,
}

const SLOTS: u64 = 10;
const COUNT_BITS: u32 = 20;
const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;
const PARTS: u64 = 1 << (u64::BITS - 2 * COUNT_BITS);

impl SuccessWindow {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            part: nanos(window).div_ceil(SLOTS).max(1),
            slots: Default::default(),
        }
    }

    /// Counts a request. `now` is the time since the start.
    pub(super) fn record(&self, now: Duration, is_success: bool) {
        let part = nanos(now) / self.part;
        let slot = &self.slots[(part % SLOTS) as usize];
        let counted = |word| {
            let slot = Slot::unpack(word).of(part % PARTS);
            Some(slot.with(is_success).pack())
        };
        // The closure always returns a value.
        let _counted = slot.fetch_update(Relaxed, Relaxed, counted);
    }

    /// Returns the successes and all requests of the window.
    pub(super) fn counts(&self, now: Duration) -> (u32, u32) {
        let part = nanos(now) / self.part;
        let is_recent = |slot: &Slot| (part % PARTS + PARTS - slot.part) % PARTS < SLOTS;
        self.slots
            .iter()
            .map(|slot| Slot::unpack(slot.load(Relaxed)))
            .filter(is_recent)
            .fold((0, 0), |(successes, total), slot| {
                (successes + slot.successes, total + slot.total)
            })
    }

    pub(super) fn clear(&self) {
        for slot in &self.slots {
            slot.store(0, Relaxed);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Slot {
    /// Returns the counts of `part`, which are zero if the slot has the counts of an earlier one.
    fn of(self, part: u64) -> Self {
        if self.part == part {
            self
        } else {
            Self {
                part,
                successes: 0,
                total: 0,
            }
        }
    }

    /// Halves the counts when they are full, which keeps their ratio.
    fn with(mut self, is_success: bool) -> Self {
        if self.total == MAX_COUNT {
            self.total /= 2;
            self.successes /= 2;
        }
        self.total += 1;
        self.successes += u32::from(is_success);
        self
    }

    fn pack(self) -> u64 {
        let counts = u64::from(self.successes) << COUNT_BITS | u64::from(self.total);
        self.part << (2 * COUNT_BITS) | counts
    }

    fn unpack(word: u64) -> Self {
        Self {
            part: word >> (2 * COUNT_BITS),
            successes: (word >> COUNT_BITS) as u32 & MAX_COUNT,
            total: word as u32 & MAX_COUNT,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn requests_leave_window_after_its_length() {
        let window = SuccessWindow::new(millis(1000));
        window.record(millis(0), false);
        window.record(millis(950), true);
        assert_eq!(window.counts(millis(999)), (1, 2));
        assert_eq!(window.counts(millis(1000)), (1, 1));
        assert_eq!(window.counts(millis(1899)), (1, 1));
        assert_eq!(window.counts(millis(1900)), (0, 0));
        // The slot of the first request is used again.
        window.record(millis(5000), true);
        assert_eq!(window.counts(millis(5000)), (1, 1));
        window.clear();
        assert_eq!(window.counts(millis(5000)), (0, 0));
    }

    #[test]
    fn full_slot_keeps_its_ratio() {
        let mut slot = Slot {
            part: PARTS - 1,
            successes: MAX_COUNT / 2,
            total: MAX_COUNT,
        };
        slot = slot.with(true);
        assert_eq!((slot.successes, slot.total), (1 << 18, 1 << 19));
        assert_eq!(Slot::unpack(slot.pack()), slot);
    }

    #[test]
    fn window_of_any_length_counts() {
        for length in [Duration::ZERO, millis(10), Duration::MAX] {
            let window = SuccessWindow::new(length);
            for now in [Duration::ZERO, millis(7), Duration::MAX] {
                window.record(now, true);
                assert!(window.counts(now).1 > 0, "{length:?} {now:?}");
            }
        }
    }
}
