//! Reachability of endpoints, by the result of the last attempt.

use std::cell::Cell;

use mesh_core::resilience::Backoff;
use rand::{Rng, RngExt as _};
use tokio::time::Instant;

/// Reachability of one endpoint. When its back-off has elapsed, the next request tries the
/// endpoint, and uses another one if that fails. Only a failure to connect counts, or a peer that
/// reports that its application cannot be reached: an endpoint that breaks off some requests serves
/// others.
///
/// While a request waits for a connection to an endpoint that has failed, the others avoid it. They
/// would all wait for the connect timeout if its node has vanished.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Set if the last attempt failed.
    retry_at: Cell<Option<Instant>>,
    failed_at: Cell<Option<Instant>>,
    /// The last attempt that has failed, or that began before the back-off had elapsed.
    tried_at: Cell<Option<Instant>>,
    failures: Cell<u32>,
    is_tried: Cell<bool>,
}

impl Health {
    pub(super) fn is_available(&self, now: Instant) -> bool {
        self.retry_at.get().is_none_or(|at| at <= now)
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.get()
    }

    pub(super) fn tried_at(&self) -> Option<Instant> {
        self.tried_at.get()
    }

    /// Records an attempt that does not wait for the back-off.
    pub(super) fn record_trial(&self, now: Instant) {
        self.tried_at.set(Some(now));
    }

    /// Whether a request waits for a connection to the endpoint, which has failed before.
    pub(super) fn is_tried(&self) -> bool {
        self.is_tried.get()
    }

    /// Begins an attempt. Returns whether it is a trial, which [`Health::end_trial`] ends.
    pub(super) fn begin_attempt(&self) -> bool {
        let is_trial = self.retry_at.get().is_some();
        if is_trial {
            self.is_tried.set(true);
        }
        is_trial
    }

    pub(super) fn end_trial(&self) {
        self.is_tried.set(false);
    }

    /// Records a failure. Failures of concurrent attempts count as one.
    pub(super) fn fail(&self, now: Instant, backoff: &Backoff, rng: &mut impl Rng) {
        self.tried_at.set(Some(now));
        if !self.is_available(now) {
            return;
        }
        let step = backoff.pause(self.failures.get(), rng.random());
        self.failures.set(self.failures.get().saturating_add(1));
        self.retry_at.set(Some(now + step));
        self.failed_at.set(Some(now));
    }

    /// Records the success of an attempt that began at `since`; one that began before the last
    /// failure is ignored. Returns whether the endpoint has recovered from a failure.
    pub(super) fn succeed(&self, since: Instant) -> bool {
        if self.failed_at.get().is_some_and(|failed| since < failed) {
            return false;
        }
        self.failures.set(0);
        self.failed_at.set(None);
        self.retry_at.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::SeedableRng as _;
    use rand::rngs::SmallRng;

    use super::*;

    fn backoff(jitter: f64) -> Backoff {
        Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_secs(1),
            jitter,
        }
    }

    #[test]
    fn concurrent_failures_count_once() {
        let mut rng = SmallRng::seed_from_u64(1);
        let (health, now) = (Health::default(), Instant::now());
        for _ in 0..10 {
            health.fail(now, &backoff(0.0), &mut rng);
        }
        assert!(!health.is_available(now));
        let later = now + Duration::from_millis(100);
        assert!(health.is_available(later));
        health.fail(later, &backoff(0.0), &mut rng);
        assert_eq!(health.retry_at(), Some(later + Duration::from_millis(200)));
        // The response to a request that was sent before the failure.
        assert!(!health.succeed(now));
        assert!(!health.is_available(later));
        assert!(health.succeed(later));
        assert!(health.is_available(now) && !health.succeed(later));
    }
}
