//! How long to leave an API server alone that did not answer.

use std::time::Duration;

use rand::RngExt as _;

/// Doubles from one failure to the next, with jitter so that the watches of all controllers do not
/// come back in one moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// From half a second, so that a short absence is over soon, to a quarter of a minute: so late
    /// at most is known what changed while the API server was away. Its own clients wait up to half
    /// a minute.
    pub(crate) const fn for_api_server() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(15))
    }

    pub(crate) const fn new(least: Duration, most: Duration) -> Self {
        Self {
            least,
            most,
            next: least,
        }
    }

    /// It worked: the next failure is the first again.
    pub(crate) fn reset(&mut self) {
        self.next = self.least;
    }

    /// Between half and all of the current delay, which then doubles.
    pub(crate) fn delay(&mut self) -> Duration {
        let delay = self.next.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.next = (self.next * 2).min(self.most);
        delay
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_most_and_begin_again() {
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
