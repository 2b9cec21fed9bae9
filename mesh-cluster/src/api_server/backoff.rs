//! Delays between retries.

use std::time::Duration;

use crate::random;

/// An exponential backoff with jitter, so that the watches of all controllers do not reconnect at
/// the same time.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// From 0.5 s to 15 s, which bounds how late changes are found after the API server becomes
    /// reachable again. Other Kubernetes clients wait up to 30 s.
    pub const fn for_api_server() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(15))
    }

    pub const fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            next: min,
        }
    }

    /// Resets the delay after a success.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// Returns between half and all of the current delay, and doubles it.
    pub fn delay(&mut self) -> Duration {
        let delay = self.next.mul_f64(random::from_to(0.5, 1.0));
        self.next = (self.next * 2).min(self.max);
        delay
    }

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_maximum_and_reset() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, second * 4);
        for full in [1, 2, 4, 4] {
            let delay = backoff.delay();
            assert!(
                (second * full / 2..=second * full).contains(&delay),
                "{delay:?} of {full} s"
            );
        }
        backoff.reset();
        assert!(backoff.delay() <= second);
    }
}
