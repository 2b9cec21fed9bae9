//! A cache of values that are evicted when they are idle: connections to the application, policy
//! enforcers, targets.
//!
//! Belongs to one data thread and has no background task: lookups evict idle values periodically.

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::time::Instant;

/// Values by key. A value is in use while other owners of its [`Rc`] exist.
#[derive(Debug)]
pub(crate) struct IdleCache<K, V> {
    max_idle: Duration,
    entries: RefCell<AHashMap<K, Entry<V>>>,
    last_sweep: Cell<Instant>,
}

#[derive(Debug)]
struct Entry<V> {
    value: Rc<V>,
    last_used: Instant,
}

impl<K: Eq + Hash, V> IdleCache<K, V> {
    /// Creates a cache that keeps idle values for `max_idle`.
    pub(crate) fn new(max_idle: Duration) -> Self {
        Self {
            max_idle,
            entries: RefCell::default(),
            last_sweep: Cell::new(Instant::now()),
        }
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
        self.entries.borrow_mut().insert(key, entry);
        value
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
            if Rc::strong_count(&entry.value) > 1 {
                entry.last_used = now;
            }
            now.duration_since(entry.last_used) < self.max_idle
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
