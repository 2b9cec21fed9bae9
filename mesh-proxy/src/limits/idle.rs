//! A cache of values that are evicted when they are idle: connections to the application, policy
//! enforcers, targets.
//!
//! Belongs to one data thread. Look-ups evict idle values periodically; where clients that are not
//! authorized yet add values, the owner also calls [`IdleCache::evict_idle`] on a timer, so that
//! the memory is freed when no look-up follows (docs/adr/0162).

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::random::Map;

/// Values by key. A value is in use while other owners of its [`Rc`] exist.
#[derive(Debug)]
pub(crate) struct IdleCache<K, V> {
    max_idle: Duration,
    /// From this number of values on, a new one replaces an unused one.
    limit: usize,
    entries: RefCell<Map<K, Entry<V>>>,
    last_sweep: Cell<Instant>,
}

#[derive(Debug)]
struct Entry<V> {
    value: Rc<V>,
    last_used: Instant,
}

impl<K: Clone + Eq + Hash, V> IdleCache<K, V> {
    /// Creates a cache that keeps idle values for `max_idle`.
    pub(crate) fn new(max_idle: Duration) -> Self {
        Self::with_limit(max_idle, usize::MAX)
    }

    /// The same, with at most `limit` values, except while more of them are in use.
    pub(crate) fn with_limit(max_idle: Duration, limit: usize) -> Self {
        Self {
            max_idle,
            limit,
            entries: RefCell::default(),
            last_sweep: Cell::new(Instant::now()),
        }
    }

    /// Whether a value can be added without exceeding the limit: there is room, or an unused value
    /// to replace.
    pub(crate) fn has_room(&self) -> bool {
        let entries = self.entries.borrow();
        entries.len() < self.limit || entries.values().any(|entry| !entry.is_used())
    }

    /// Returns the value of `key`, which `create` returns if there is none. `create` must not use
    /// this cache.
    pub(crate) fn get_or_insert_with(&self, key: K, create: impl FnOnce(&K) -> V) -> Rc<V> {
        if let Some(value) = self.get(&key) {
            return value;
        }
        let value = create(&key);
        self.insert(key, value)
    }

    /// Returns the value of `key`, if there is one.
    pub(crate) fn get(&self, key: &K) -> Option<Rc<V>> {
        let now = Instant::now();
        self.sweep(now);
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(key)?;
        entry.last_used = now;
        Some(entry.value.clone())
    }

    /// Replaces the value of `key`. Owners of the previous value keep it.
    pub(crate) fn insert(&self, key: K, value: V) -> Rc<V> {
        let value = Rc::new(value);
        let entry = Entry {
            value: value.clone(),
            last_used: Instant::now(),
        };
        let mut entries = self.entries.borrow_mut();
        let evicted = if entries.len() >= self.limit && !entries.contains_key(&key) {
            let unused = entries.iter().filter(|(_, entry)| !entry.is_used());
            let oldest = unused.min_by_key(|(_, entry)| entry.last_used);
            oldest
                .map(|(key, _)| key.clone())
                .and_then(|key| entries.remove(&key))
        } else {
            None
        };
        let replaced = entries.insert(key, entry);
        drop(entries);
        // Dropped after the borrow, because a value may end tasks that use the cache.
        drop((evicted, replaced));
        value
    }

    /// Evicts the values that have been idle for too long.
    pub(crate) fn evict_idle(&self) {
        self.sweep(Instant::now());
    }

    /// Evicts all values that are not in use, because memory is short.
    pub(crate) fn evict_unused(&self) {
        self.entries.borrow_mut().retain(|_, entry| entry.is_used());
    }

    /// Returns the time between two calls of [`IdleCache::evict_idle`]. A zero interval would spin.
    pub(crate) fn eviction_interval(&self) -> Duration {
        (self.max_idle / 2).max(Duration::from_millis(100))
    }

    /// Returns the number of values, including idle ones that are not evicted yet.
    pub(crate) fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.entries.borrow().contains_key(key)
    }

    /// Evicts idle values, at most every `max_idle / 2`. A sweep has to find a value unused before
    /// a later one evicts it, so it stays for 1 to 1.5 times `max_idle`.
    fn sweep(&self, now: Instant) {
        if now.duration_since(self.last_sweep.get()) < self.max_idle / 2 {
            return;
        }
        self.last_sweep.set(now);
        self.entries.borrow_mut().retain(|_, entry| {
            if entry.is_used() {
                entry.last_used = now;
            }
            now.duration_since(entry.last_used) < self.max_idle
        });
    }
}

impl<V> Entry<V> {
    fn is_used(&self) -> bool {
        Rc::strong_count(&self.value) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_value_replaces_oldest_unused_one_at_the_limit() {
        let cache = IdleCache::with_limit(Duration::from_secs(90), 3);
        let mut used = vec![cache.insert(0, ())];
        for key in 1..10 {
            tokio::time::advance(Duration::from_secs(1)).await;
            cache.insert(key, ());
            assert!(cache.count() <= 3 && cache.has_room(), "{key}");
        }
        assert!(cache.contains(&0) && cache.contains(&8) && cache.contains(&9));
        used.extend([cache.get(&8), cache.get(&9)].into_iter().flatten());
        assert!(!cache.has_room(), "all are in use");
        used.pop();
        assert!(cache.has_room(), "one is no longer");
        cache.evict_unused();
        assert_eq!(cache.count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_values_are_evicted_without_a_look_up() {
        let cache = IdleCache::new(Duration::from_secs(90));
        cache.insert(0, ());
        for _ in 0..2 {
            assert_eq!(cache.count(), 1);
            tokio::time::advance(cache.eviction_interval()).await;
            cache.evict_idle();
        }
        assert_eq!(cache.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn values_are_evicted_only_when_idle() {
        let cache = IdleCache::new(Duration::from_secs(90));
        let created = Cell::new(0);
        let get = |key: &'static str| {
            cache.get_or_insert_with(key, |_| {
                created.set(created.get() + 1);
                created.get()
            })
        };
        let used = get("used");
        assert_eq!(*get("idle"), 2);
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(60)).await;
            get("other");
        }
        assert_eq!(*get("used"), *used);
        assert_eq!(*get("idle"), 4, "recreated");
        drop(used);
        tokio::time::advance(Duration::from_secs(80)).await;
        assert_eq!(*get("used"), 1, "not yet idle long enough");
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(140)).await;
            get("other");
        }
        assert_eq!(*get("used"), created.get(), "recreated");
    }
}
