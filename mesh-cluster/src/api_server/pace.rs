//! The pace of watches. When the API server ends a watch regularly, kube starts it again at once.
//! An API server that shuts down, or a load balancer before it, may end each watch immediately:
//! without a limit each kind would be asked for hundreds of times a second.

use std::collections::HashMap;
use std::time::Duration;

use http::Uri;
use parking_lot::Mutex;

use super::deadline::is_watch;
use super::{Rate, RateLimiter};

/// Limits how often each resource is watched.
#[derive(Debug, Default)]
pub(super) struct Pace {
    // One for each kind that the process watches. Locked while one is found or added.
    limiters: Mutex<HashMap<String, RateLimiter>>,
}

/// A watch normally lasts a minute and more. The burst is for a few failures in a row, which have
/// delays of their own.
const RATE: Rate = Rate {
    per_second: 0.5,
    burst: 5,
};

impl Pace {
    /// Waits until a request may be sent: one that is not a watch at once.
    pub(super) async fn wait(&self, uri: &Uri) {
        if !is_watch(uri.query().unwrap_or_default()) {
            return;
        }
        let limiter = {
            let mut limiters = self.limiters.lock();
            let limiter = limiters.entry(uri.path().to_owned());
            limiter.or_insert_with(|| RateLimiter::new(RATE)).clone()
        };
        limiter.acquire_within(Duration::MAX).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watches_of_a_path_that_end_at_once_start_every_two_seconds() {
        let pace = Pace::default();
        let wait = async |uri| pace.wait(&Uri::from_static(uri)).await;
        let begin = Instant::now();
        for _ in 0..5 {
            wait("/api/v1/pods?watch=true&resourceVersion=1").await;
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
        for _ in 0..5 {
            wait("/api/v1/pods?watch=true&resourceVersion=2").await;
        }
        assert_eq!(begin.elapsed(), Duration::from_secs(10));
        wait("/api/v1/services?watch=true").await;
        for _ in 0..100 {
            wait("/api/v1/pods?limit=1").await;
        }
        assert_eq!(begin.elapsed(), Duration::from_secs(10));
    }
}
