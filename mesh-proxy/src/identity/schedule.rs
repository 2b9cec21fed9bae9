//! When to ask for the next certificate. Pure.

use std::time::{Duration, SystemTime};

use mesh_core::resilience::Backoff;

use crate::control::backoff::Retries;

/// Decides when the next request is due.
#[derive(Debug)]
pub(super) struct Schedule {
    min: Duration,
    max: Duration,
    retries: Retries,
}

/// Share of a certificate's remaining life after which it is renewed; Linkerd's.
const RENEW_AT: f64 = 0.7;

/// The control plane may be starting beside us: ask often at first.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// The longest pause while there is no certificate and the service does not answer: the application
/// waits. A service that answers, and refuses, is asked at the pace of renewals, because each
/// question costs it a review of the token.
const MAX_PAUSE_AT_START: Duration = Duration::from_secs(2);

impl Schedule {
    /// `min` and `max` bound the time between two certificates.
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

    /// Linkerd's proxy waits for 70 % of the remaining life again, which may be hours; we keep
    /// asking at the retries' pace.
    pub(super) fn after_failure(
        &mut self,
        expires: Option<SystemTime>,
        refused: bool,
        now: SystemTime,
    ) -> SystemTime {
        let wait = self.retries.next_wait();
        match expires {
            Some(expires) => now + wait.min(self.renew_after(expires, now)),
            None if refused => now + wait,
            None => now + wait.min(MAX_PAUSE_AT_START),
        }
    }

    fn renew_after(&self, expires: SystemTime, now: SystemTime) -> Duration {
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
    fn renewal_is_due_at_seventy_percent_within_bounds() {
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
    fn failures_are_retried_soon_and_then_at_the_least_interval() {
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
            MAX_PAUSE_AT_START,
            "while nobody answers"
        );
        schedule.after_success(now + HOUR, now);
        let due = schedule.after_failure(Some(now + HOUR), false, now);
        assert!(wait(due) < Duration::from_millis(120));
    }
}
