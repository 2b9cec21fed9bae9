//! Rate limits: a number of operations per second, with bursts.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A rate, for example of `--kube-apiclient-qps` and `--kube-apiclient-burst`.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub per_second: f64,
    pub burst: u32,
}

/// A token bucket without timers: the generic cell rate algorithm. Its only state is the time when
/// the operations so far would end at the steady rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket {
    used_until: Option<Instant>,
}

/// A token bucket that tasks share and wait for. Clones share one bucket.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    rate: Rate,
    // Locked for a few instructions by each request.
    bucket: Arc<Mutex<TokenBucket>>,
}

impl Rate {
    fn interval(self) -> Duration {
        Duration::try_from_secs_f64(1.0 / self.per_second).unwrap_or(Duration::MAX)
    }

    fn burst_tolerance(self) -> Duration {
        self.interval().saturating_mul(self.burst.saturating_sub(1))
    }

    /// Returns the rate divided by a number of users.
    #[must_use]
    pub fn divided_by(self, divisor: u32) -> Self {
        Self {
            per_second: self.per_second / f64::from(divisor),
            burst: (self.burst / divisor).max(1),
        }
    }
}

impl TokenBucket {
    /// Takes a token, or returns the time until one is available.
    pub fn try_acquire(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        let delay = self.delay(rate, now);
        if delay > Duration::ZERO {
            return Err(delay);
        }
        self.consume(rate, now);
        Ok(())
    }

    /// Returns whether the bucket is full, like a new one.
    pub fn is_full(&self, now: Instant) -> bool {
        self.used_until.is_none_or(|used| used <= now)
    }

    fn delay(&self, rate: Rate, now: Instant) -> Duration {
        let ahead = self
            .used_until
            .map_or(Duration::ZERO, |used| used.saturating_duration_since(now));
        ahead.saturating_sub(rate.burst_tolerance())
    }

    fn consume(&mut self, rate: Rate, now: Instant) {
        let from = self.used_until.map_or(now, |used| used.max(now));
        self.used_until = from.checked_add(rate.interval()).or(Some(from));
    }
}

impl RateLimiter {
    pub fn new(rate: Rate) -> Self {
        Self {
            rate,
            bucket: Arc::default(),
        }
    }

    /// Waits for a token. Returns `false` immediately if that would take longer than `max_delay`.
    pub async fn acquire_within(&self, max_delay: Duration) -> bool {
        let now = Instant::now();
        let delay = {
            let mut bucket = self.bucket.lock();
            let delay = bucket.delay(self.rate, now);
            if delay > max_delay {
                return false;
            }
            bucket.consume(self.rate, now);
            delay
        };
        if delay > Duration::ZERO {
            sleep_until(now + delay).await;
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
    fn burst_is_followed_by_steady_rate() {
        let now = Instant::now();
        let mut bucket = TokenBucket::default();
        for _ in 0..3 {
            assert_eq!(bucket.try_acquire(RATE, now), Ok(()));
        }
        assert_eq!(
            bucket.try_acquire(RATE, now),
            Err(Duration::from_millis(100))
        );
        let later = now + Duration::from_millis(100);
        assert_eq!(bucket.try_acquire(RATE, later), Ok(()));
        assert!(bucket.try_acquire(RATE, later).is_err());
        assert!(!bucket.is_full(later));
        let rested = later + Duration::from_secs(1);
        assert!(bucket.is_full(rested));
        let taken = (0..10).filter(|_| bucket.try_acquire(RATE, rested).is_ok());
        assert_eq!(taken.count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_waits_up_to_maximum_delay() {
        let limiter = RateLimiter::new(RATE);
        let begin = Instant::now();
        for _ in 0..8 {
            assert!(limiter.acquire_within(Duration::from_secs(1)).await);
        }
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
        assert!(!limiter.acquire_within(Duration::from_millis(50)).await);
        assert_eq!(begin.elapsed(), Duration::from_millis(500));
    }
}
