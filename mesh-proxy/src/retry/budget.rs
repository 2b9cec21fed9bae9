//! The retry budget of a ServiceProfile: how many retries its requests may cause. Created by
//! [`crate::discovery`] for a destination, and shared by the data threads.
//!
//! A token bucket without a lock. Each request deposits a part of a retry, which counts for the
//! budget's time to live; a retry withdraws a whole one. The time is divided into slots of a tenth
//! of it, so a deposit expires at most that much too early.

use std::time::Duration;

use mesh_core::resilience::RetryBudget as Settings;
use tokio::time::Instant;

use crate::sync::{AtomicU64, Ordering, fence};

/// The budget of one destination.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    settings: Settings,
    start: Instant,
    slots: [Slot; SLOTS],
}

/// The balance of one part of the time to live: its number since the start in the upper half, the
/// signed balance in the lower.
#[derive(Debug, Default)]
struct Slot(AtomicU64);

const SLOTS: usize = 10;

/// The cost of a retry. A request deposits this, multiplied by the ratio.
const COST: i32 = 1_000;

impl RetryBudget {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            start: Instant::now(),
            slots: Default::default(),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings
    }

    /// Records a request, which allows its share of a retry.
    pub(crate) fn deposit(&self, now: Instant) {
        let share = (f64::from(self.settings.ratio) * f64::from(COST)).round();
        self.add(self.turn(now), share as i32);
    }

    /// Allows a retry and records it, if the budget suffices.
    pub(crate) fn withdraw(&self, now: Instant) -> bool {
        let turn = self.turn(now);
        // Taken first: of two threads that compete for the last retry, at most one gets it.
        self.add(turn, -COST);
        // They may write to different slots, when one of them was interrupted: each then has to see
        // the other's write, or be seen by it.
        fence(Ordering::SeqCst);
        let suffices = self.balance(turn) >= 0;
        if !suffices {
            self.add(turn, COST);
        }
        suffices
    }

    /// Returns the number of the slot that `now` is in, since the start.
    fn turn(&self, now: Instant) -> u32 {
        let elapsed = now.saturating_duration_since(self.start);
        let turn = elapsed.as_millis() / self.slot_length().as_millis().max(1);
        u32::try_from(turn).unwrap_or(u32::MAX)
    }

    fn slot_length(&self) -> Duration {
        self.settings.ttl / SLOTS as u32
    }

    fn add(&self, turn: u32, amount: i32) {
        self.slots[turn as usize % SLOTS].add(turn, amount);
    }

    /// Returns the sum of the slots that have not expired, and of the constant allowance.
    fn balance(&self, turn: u32) -> i64 {
        let reserve = f64::from(self.settings.min_per_second)
            * self.settings.ttl.as_secs_f64()
            * f64::from(COST);
        let slots = self.slots.iter().filter_map(|slot| {
            let (of, balance) = slot.read();
            // Slots after `turn` count too: another thread has read the time later.
            let age = turn.saturating_sub(of);
            ((age as usize) < SLOTS).then_some(i64::from(balance))
        });
        reserve as i64 + slots.sum::<i64>()
    }
}

/// Two budgets are the same if their settings are: snapshots of discovery compare them.
impl PartialEq for RetryBudget {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl Slot {
    fn read(&self) -> (u32, i32) {
        Self::unpack(self.0.load(Ordering::Relaxed))
    }

    /// Adds `amount` to the balance of `turn`, which replaces an earlier turn's.
    fn add(&self, turn: u32, amount: i32) {
        let update = |packed| {
            let (of, balance) = Self::unpack(packed);
            let balance = match of.cmp(&turn) {
                std::cmp::Ordering::Equal => balance.saturating_add(amount),
                std::cmp::Ordering::Less => amount,
                // This thread was interrupted for the whole time to live.
                std::cmp::Ordering::Greater => return None,
            };
            Some(Self::pack(turn, balance))
        };
        // Fails only if nothing is to be added.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    fn pack(turn: u32, balance: i32) -> u64 {
        u64::from(turn) << 32 | u64::from(balance.cast_unsigned())
    }

    fn unpack(packed: u64) -> (u32, i32) {
        ((packed >> 32) as u32, (packed as u32).cast_signed())
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::thread;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn budget(ttl: u64, min_per_second: u32, ratio: f32) -> RetryBudget {
        RetryBudget::new(Settings {
            ttl: SECOND * ttl as u32,
            min_per_second,
            ratio,
        })
    }

    /// The number of retries that are allowed at `now`.
    fn allowed(budget: &RetryBudget, now: Instant) -> usize {
        (0..1_000_000).take_while(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn requests_allow_their_ratio_of_retries() {
        for (ratio, requests, retries) in [
            (0.0, 100, 0),
            (0.2, 100, 20),
            (0.2, 4, 0),
            (1.0, 7, 7),
            (1.5, 100, 150),
            (1_000.0, 3, 3_000),
        ] {
            let budget = budget(10, 0, ratio);
            for _ in 0..requests {
                budget.deposit(budget.start);
            }
            let now = budget.start + SECOND;
            assert_eq!(allowed(&budget, now), retries, "{ratio} of {requests}");
        }
    }

    #[test]
    fn minimum_is_allowed_in_each_time_to_live() {
        let budget = budget(10, 3, 0.0);
        for n in 0..5 {
            let now = budget.start + SECOND * 10 * n;
            assert_eq!(allowed(&budget, now), 30);
            assert_eq!(allowed(&budget, now + SECOND * 5), 0);
        }
    }

    #[test]
    fn deposits_expire_after_the_time_to_live() {
        let budget = budget(10, 0, 1.0);
        budget.deposit(budget.start);
        budget.deposit(budget.start + SECOND * 5);
        assert_eq!(allowed(&budget, budget.start + SECOND * 11), 1);
        budget.deposit(budget.start + SECOND * 12);
        assert_eq!(allowed(&budget, budget.start + SECOND * 60), 0);
    }

    #[test]
    fn extreme_settings_do_not_overflow() {
        let budget = budget(60, u32::MAX, 1_000.0);
        let now = budget.start + Duration::from_secs(u64::from(u32::MAX));
        for _ in 0..10_000 {
            budget.deposit(now);
        }
        assert!(budget.withdraw(now));
        assert!(
            budget.withdraw(budget.start),
            "an earlier time changes nothing"
        );
    }

    #[test]
    fn threads_share_the_budget() {
        let budget = budget(10, 100, 0.0);
        let now = budget.start;
        let total: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| allowed(&budget, now)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        // A thread that finds the budget empty for a moment stops early.
        assert!(total <= 1_000, "{total}");
        assert_eq!(total + allowed(&budget, now), 1_000);
    }
}
