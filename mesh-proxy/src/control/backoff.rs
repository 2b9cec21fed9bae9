//! Exponential back-off between retries.

use std::time::Duration;

use mesh_core::resilience::Backoff;

use crate::random;

/// The back-off of a series of failures.
#[derive(Clone, Debug)]
pub(crate) struct Retries {
    backoff: Backoff,
    /// The failures of the series so far.
    failures: u32,
}

impl Retries {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            failures: 0,
        }
    }

    /// Returns the wait after another failure: twice the last one up to the maximum, plus random
    /// jitter.
    pub(crate) fn next_wait(&mut self) -> Duration {
        self.next_wait_with(random::random())
    }

    /// Restarts the series after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// `share` is the part of the jitter to add, from 0 to 1.
    fn next_wait_with(&mut self, share: f64) -> Duration {
        let wait = self.backoff.pause(self.failures, share);
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_maximum() {
        let mut retries = Retries::new(Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_millis(500),
            jitter: 0.5,
        });
        let waits: Vec<_> = [0.0, 1.0, 0.0, 1.0, 0.0]
            .map(|share| retries.next_wait_with(share).as_millis())
            .into();
        assert_eq!(waits, [100, 300, 400, 750, 500]);
        retries.reset();
        assert_eq!(retries.next_wait_with(0.0).as_millis(), 100);
    }

    #[test]
    fn no_wait_is_longer_than_a_maximum_below_the_minimum() {
        let mut retries = Retries::new(Backoff {
            min: Duration::from_secs(2),
            max: Duration::from_secs(1),
            jitter: 0.0,
        });
        assert_eq!(retries.next_wait_with(0.0), Duration::from_secs(1));
        assert_eq!(retries.next_wait_with(0.0), Duration::from_secs(1));
    }
}
