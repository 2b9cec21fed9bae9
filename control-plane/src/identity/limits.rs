//! Rate limits of certificates for each account.
//!
//! The account is the one that the token claims, before the API server reviews it: a workload that
//! requests certificates in a loop only uses up its own limit, and not the rate of reviews that the
//! others need. A client with a forged token can use up the limit of another account; it could also
//! use up the rate of reviews.

use std::collections::HashMap;
use std::time::Duration;

use mesh_cluster::api_server::{Rate, TokenBucket};
use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket for each account.
#[derive(Debug)]
pub(super) struct CallerLimits {
    rate: Rate,
    // Locked for a few instructions by each request, and at most once a second for a sweep.
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    buckets: HashMap<String, TokenBucket>,
    swept: Option<Instant>,
}

/// The maximum number of accounts with a bucket. A cluster has hundreds; more are forged names, and
/// then buckets that are full are removed.
const MAX_CALLERS: usize = 10_000;

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl CallerLimits {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            callers: Mutex::default(),
        }
    }

    /// Returns whether a request for this identity is within its limit.
    pub(super) fn admit(&self, caller: &str, now: Instant) -> bool {
        let callers = &mut *self.callers.lock();
        if let Some(bucket) = callers.buckets.get_mut(caller) {
            return bucket.try_acquire(self.rate, now).is_ok();
        }
        if callers.buckets.len() >= MAX_CALLERS {
            callers.sweep(now);
            if callers.buckets.len() >= MAX_CALLERS {
                return false;
            }
        }
        let mut bucket = TokenBucket::default();
        let admitted = bucket.try_acquire(self.rate, now).is_ok();
        callers.buckets.insert(caller.to_owned(), bucket);
        admitted
    }
}

impl Callers {
    /// Removes full buckets, at most once per interval: a sweep for each forged name would cost too
    /// much.
    fn sweep(&mut self, now: Instant) {
        let is_recent = |swept: Instant| now.saturating_duration_since(swept) < SWEEP_INTERVAL;
        if self.swept.is_some_and(is_recent) {
            return;
        }
        self.swept = Some(now);
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_have_separate_limits_and_full_buckets_are_removed() {
        let limits = CallerLimits::new(Rate {
            per_second: 1.0,
            burst: 2,
        });
        let now = Instant::now();
        assert!(limits.admit("web", now) && limits.admit("web", now));
        assert!(!limits.admit("web", now));
        assert!(limits.admit("db", now));
        assert!(limits.admit("web", now + Duration::from_secs(1)));
        for forged in 0..MAX_CALLERS * 2 {
            limits.admit(&forged.to_string(), now);
        }
        assert_eq!(limits.callers.lock().buckets.len(), MAX_CALLERS);
        assert!(!limits.admit("new", now));
        assert!(limits.admit("new", now + Duration::from_secs(60)));
        assert_eq!(limits.callers.lock().buckets.len(), 1);
    }
}
