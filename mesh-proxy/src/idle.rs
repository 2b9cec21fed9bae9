//! A map of things that are worth keeping while they are used and a little longer: connections to
//! the application, judges, targets.
//!
//! Belongs to one data thread. Nothing runs in the background: looking something up removes, now
//! and then, what has been idle too long.

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::time::Instant;

/// Values by key, each in use as long as somebody else holds it.
#[derive(Debug)]
pub struct IdleCache<K, V> {
    keep: Duration,
    entries: RefCell<AHashMap<K, Entry<V>>>,
    swept: Cell<Instant>,
}

#[derive(Debug)]
struct Entry<V> {
    value: Rc<V>,
    used: Instant,
}

impl<K: Eq + Hash, V> IdleCache<K, V> {
    /// `keep` is how long a value that nobody holds stays.
    pub fn new(keep: Duration) -> Self {
        Self {
            keep,
            entries: RefCell::default(),
            swept: Cell::new(Instant::now()),
        }
    }

    /// The value of `key`, made now if there is none. `make` must not look into this cache.
    pub fn find_or(&self, key: K, make: impl FnOnce(&K) -> V) -> Rc<V> {
        if let Some(value) = self.find(&key) {
            return value;
        }
        let value = make(&key);
        self.insert(key, value)
    }

    /// The value of `key`, if there is one.
    pub fn find(&self, key: &K) -> Option<Rc<V>> {
        let now = Instant::now();
        self.sweep(now);
        let mut entries = self.entries.borrow_mut();
        let entry = entries.get_mut(key)?;
        entry.used = now;
        Some(entry.value.clone())
    }

    /// Makes `value` that of `key`. Who holds another one keeps it.
    pub fn insert(&self, key: K, value: V) -> Rc<V> {
        let value = Rc::new(value);
        let entry = Entry {
            value: value.clone(),
            used: Instant::now(),
        };
        self.entries.borrow_mut().insert(key, entry);
        value
    }

    /// How many values there are, idle ones that no sweep has removed among them.
    pub fn count(&self) -> usize {
        self.entries.borrow().len()
    }

    pub fn contains(&self, key: &K) -> bool {
        self.entries.borrow().contains_key(key)
    }

    /// Removes what is idle, at most twice in the time that idle values are kept. A value is found
    /// unused first and removed by a later sweep, so it lives between one and one and a half times
    /// as long.
    fn sweep(&self, now: Instant) {
        if now.duration_since(self.swept.get()) < self.keep / 2 {
            return;
        }
        self.swept.set(now);
        self.entries.borrow_mut().retain(|_, entry| {
            if Rc::strong_count(&entry.value) > 1 {
                entry.used = now;
            }
            now.duration_since(entry.used) < self.keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn values_stay_while_they_are_used_and_a_little_longer() {
        let cache = IdleCache::new(Duration::from_secs(90));
        let made = Cell::new(0);
        let look = |key: &'static str| {
            cache.find_or(key, |_| {
                made.set(made.get() + 1);
                made.get()
            })
        };
        let held = look("held");
        assert_eq!(*look("idle"), 2);
        for _ in 0..10 {
            tokio::time::advance(Duration::from_secs(60)).await;
            look("other");
        }
        assert_eq!(*look("held"), *held);
        assert_eq!(*look("idle"), 4, "made anew");
        drop(held);
        tokio::time::advance(Duration::from_secs(80)).await;
        assert_eq!(*look("held"), 1, "not yet idle long enough");
        for _ in 0..2 {
            tokio::time::advance(Duration::from_secs(140)).await;
            look("other");
        }
        assert_eq!(*look("held"), made.get(), "made anew");
    }
}
