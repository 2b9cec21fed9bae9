//! The last values of destinations that are no longer watched, for look-ups without a response from
//! the control plane. Used by [`super::watch_cache`].

use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use crate::random::Map;

/// Last values by key, of a bounded total size and age.
pub(super) struct LastValues<K, T> {
    limit: usize,
    values: Map<K, LastValue<T>>,
}

struct LastValue<T> {
    value: T,
    size: usize,
    since: Instant,
}

/// How long the value of an unused destination is kept. Clients that send a request every few
/// minutes, such as jobs and probes, go on during an outage of the control plane; an older value
/// rather names pods that no longer exist.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(600);

impl<K: Eq + Hash + Clone, T> LastValues<K, T> {
    /// Creates a table of values whose sizes add up to at most `limit`.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            values: Map::default(),
        }
    }

    /// Adds a value. [`trim`](Self::trim) must follow.
    pub(super) fn insert(&mut self, key: K, value: T, size: usize, now: Instant) {
        let since = now;
        self.values.insert(key, LastValue { value, size, since });
    }

    /// Removes the value of `key` and returns it if it is recent.
    pub(super) fn take(&mut self, key: &K, now: Instant) -> Option<T> {
        let last = self.values.remove(key)?;
        last.is_recent(now).then_some(last.value)
    }

    /// Removes old values, and the oldest ones of the others until the limit is kept.
    pub(super) fn trim(&mut self, now: Instant) {
        self.values.retain(|_, last| last.is_recent(now));
        let mut total: usize = self.values.values().map(|last| last.size).sum();
        if total <= self.limit {
            return;
        }
        let mut by_age: Vec<(Instant, K)> = self
            .values
            .iter()
            .map(|(key, last)| (last.since, key.clone()))
            .collect();
        by_age.sort_by_key(|(since, _)| *since);
        for (_, key) in by_age {
            if total <= self.limit {
                return;
            }
            total -= self.values.remove(&key).map_or(0, |last| last.size);
        }
    }
}

impl<T> LastValue<T> {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < KEPT_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_values_beyond_the_limit_are_removed() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut last = LastValues::new(5);
        for (key, size, at) in [("c", 2, 3), ("a", 2, 1), ("b", 2, 2), ("large", 6, 0)] {
            last.insert(key, key, size, after(at));
        }
        last.trim(after(4));
        let kept = ["large", "a", "b", "c"].map(|key| last.take(&key, after(4)));
        assert_eq!(kept, [None, None, Some("b"), Some("c")]);
        assert_eq!(last.take(&"c", after(4)), None, "it is taken once");
    }

    #[test]
    fn unused_value_is_kept_for_ten_minutes() {
        let start = Instant::now();
        let mut last = LastValues::new(5);
        let end = start + KEPT_FOR;
        last.insert("a", (), 1, start);
        assert_eq!(last.take(&"a", end - Duration::from_secs(1)), Some(()));
        last.insert("a", (), 1, start);
        assert_eq!(last.take(&"a", end), None);
        last.insert("a", (), 1, start);
        last.trim(end);
        assert!(last.values.is_empty());
    }
}
