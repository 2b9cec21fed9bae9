//! How often somebody may do something: so many a second, and so many at once after a rest.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A rate, as `--kube-apiclient-qps` and `--kube-apiclient-burst` give it.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub per_second: f64,
    pub burst: u32,
}

/// What is left of a rate for one user of it. The number it keeps is the moment at which everything
/// used so far would have been used at a steady pace ("generic cell rate algorithm"), which makes
/// it as small as it can be and free of timers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowance {
    used_until: Option<Instant>,
}

/// An allowance that tasks share, and wait for. Clones share it too.
#[derive(Clone, Debug)]
pub struct Pace {
    rate: Rate,
    // Taken for a few instructions by each request.
    allowance: Arc<Mutex<Allowance>>,
}

impl Rate {
    fn interval(self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.per_second).unwrap_or(Duration::MAX)
    }

    fn head_start(self) -> Duration {
        self.interval().saturating_mul(self.burst.saturating_sub(1))
    }

    /// A part of it, for one of many.
    #[must_use]
    pub(crate) fn share(self, of: u32) -> Self {
        Self {
            per_second: self.per_second / f64::from(of),
            burst: (self.burst / of).max(1),
        }
    }
}

impl Allowance {
    /// Takes one, or tells in how long there is one again.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let wait = self.wait(rate, now);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.book(rate, now);
        Ok(())
    }

    /// Has not been used for so long that it is as good as new.
    pub(crate) fn is_whole(&self, now: Instant) -> bool {
        self.used_until.is_none_or(|used| used <= now)
    }

    fn wait(&self, rate: Rate, now: Instant) -> Duration {
        let ahead = self
            .used_until
            .map_or(Duration::ZERO, |used| used.saturating_duration_since(now));
        ahead.saturating_sub(rate.head_start())
    }

    fn book(&mut self, rate: Rate, now: Instant) {
        let from = self.used_until.map_or(now, |used| used.max(now));
        self.used_until = from.checked_add(rate.interval()).or(Some(from));
    }
}

impl Pace {
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            allowance: Arc::default(),
        }
    }

    /// Waits for its turn; not at all when that would take longer than `longest`.
    pub(crate) async fn turn_within(&self, longest: Duration) -> bool {
        let now = Instant::now();
        let wait = {
            let mut allowance = self.allowance.lock();
            let wait = allowance.wait(self.rate, now);
            if wait > longest {
                return false;
            }
            allowance.book(self.rate, now);
            wait
        };
        if wait > Duration::ZERO {
            sleep_until(now + wait).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 10.0,
        burst: 3,
    };

    #[test]
    fn a_burst_and_then_the_rate() {
        let now = Instant::now();
        let mut allowance = Allowance::default();
        for _ in 0..3 {
            assert_eq!(allowance.take(RATE, now), Ok(()));
        }
        assert_eq!(allowance.take(RATE, now), Err(Duration::from_millis(100)));
        let later = now + Duration::from_millis(100);
        assert_eq!(allowance.take(RATE, later), Ok(()));
        assert!(allowance.take(RATE, later).is_err());
        assert!(!allowance.is_whole(later));
        let rested = later + Duration::from_secs(1);
        assert!(allowance.is_whole(rested));
        let taken = (0..10).filter(|_| allowance.take(RATE, rested).is_ok());
        assert_eq!(taken.count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_wait_for_their_turn_but_not_for_ever() {
        let pace = Pace::new(RATE);
        let begin = Instant::now();
        for _ in 0..8 {
            assert!(pace.turn_within(Duration::from_secs(1)).await);
        }
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
        assert!(!pace.turn_within(Duration::from_millis(50)).await);
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
    }
}
