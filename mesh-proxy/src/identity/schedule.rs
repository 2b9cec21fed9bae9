//! When the next certificate is requested. Does no I/O.

use std::time::{Duration, SystemTime};

use mesh_core::resilience::Backoff;

use crate::control::backoff::Retries;

/// Computes when the next request is due.
#[derive(Debug)]
pub(super) struct Schedule {
    min: Duration,
    max: Duration,
    retries: Retries,
}

/// A certificate is renewed after this fraction of its remaining lifetime, as in Linkerd.
const RENEW_AT: f64 = 0.7;

/// Short, because the control plane may be starting at the same time.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// The longest wait while there is no certificate and the service does not respond, because the
/// application waits too. Refusals are retried at the interval of renewals, because each request
/// costs the service a TokenReview.
const MAX_WAIT_AT_START: Duration = Duration::from_secs(2);

impl Schedule {
    /// Creates a schedule with `min` and `max` as limits of the time between two certificates.
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            retries: Retries::new(Backoff {
                min: FIRST_RETRY.min(min),
                max: min,
                jitter: 0.1,
            }),
        }
    }

    pub(super) fn after_success(&mut self, expires: SystemTime, now: SystemTime) -> SystemTime {
        self.retries.reset();
        now + self.renew_after(expires, now)
    }

    /// Returns when to retry, with backoff. Linkerd's proxy waits for 70% of the remaining lifetime
    /// instead, which may be hours.
    pub(super) fn after_failure(
        &mut self,
        expires: Option<SystemTime>,
        is_refusal: bool,
        now: SystemTime,
    ) -> SystemTime {
        let wait = self.retries.next_wait();
        match expires {
            Some(expires) => now + wait.min(self.renew_after(expires, now)),
            None if is_refusal => now + wait,
            None => now + wait.min(MAX_WAIT_AT_START),
        }
    }

    /// Returns how long a certificate is used before it is replaced.
    pub(super) fn renew_after(&self, expires: SystemTime, now: SystemTime) -> Duration {
        let remaining = expires.duration_since(now).unwrap_or_default();
        remaining.mul_f64(RENEW_AT).clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn schedule() -> Schedule {
        Schedule::new(Duration::from_secs(10), 24 * HOUR)
    }

    #[test]
    fn renewal_is_due_after_70_percent_within_limits() {
        let now = SystemTime::now();
        let check = |lifetime: Duration, expect: Duration| {
            let due = schedule().after_success(now + lifetime, now);
            assert_eq!(due.duration_since(now).unwrap(), expect);
        };
        check(HOUR * 10, HOUR * 7);
        check(HOUR * 100, HOUR * 24);
        check(Duration::from_secs(5), Duration::from_secs(10));
        let due = schedule().after_success(now - HOUR, now);
        assert_eq!(due, now + Duration::from_secs(10), "expired already");
    }

    #[test]
    fn failures_are_retried_soon_and_then_at_the_minimum_interval() {
        let now = SystemTime::now();
        let mut schedule = schedule();
        let wait = |due: SystemTime| due.duration_since(now).unwrap();
        let mut waits: Vec<_> = (0..12)
            .map(|_| wait(schedule.after_failure(None, true, now)))
            .collect();
        assert!(waits[0] < Duration::from_millis(120));
        assert!(waits.remove(11) >= Duration::from_secs(10));
        assert!(
            waits[..7].is_sorted(),
            "doubling outweighs jitter: {waits:?}"
        );
        assert_eq!(
            wait(schedule.after_failure(None, false, now)),
            MAX_WAIT_AT_START,
            "while the service does not respond"
        );
        schedule.after_success(now + HOUR, now);
        let due = schedule.after_failure(Some(now + HOUR), false, now);
        assert!(wait(due) < Duration::from_millis(120));
    }
}
