//! A cache of watched values. One task on the control thread updates each value; all data threads
//! share it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Watched values by key.
pub(super) struct WatchCache<K, V> {
    // Locked by any thread for a look-up, once per connection or balancer.
    entries: Mutex<HashMap<K, Entry<V>>>,
}

/// A cached value that may have its own receivers.
pub(super) trait SharedWatch {
    /// The number of receivers that the value itself has.
    fn users(&self) -> usize {
        0
    }
}

struct Entry<V> {
    sender: watch::Sender<V>,
    task: AbortHandle,
    /// Whether the value was unused at the last sweep.
    is_idle: bool,
}

impl<T> SharedWatch for Arc<T> {}

impl<T> SharedWatch for Option<T> {}

impl<K, V> WatchCache<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: SharedWatch + Send + Sync + 'static,
{
    /// Creates a cache that evicts values that are unused for `idle`, and at most twice as long.
    pub(super) fn new(idle: Duration, runtime: &Handle) -> Arc<Self> {
        let cache = Arc::new(Self {
            entries: Mutex::default(),
        });
        // A value is evicted when two consecutive sweeps find it unused. A zero interval would
        // spin.
        let interval = idle.max(Duration::from_millis(1));
        let weak = Arc::downgrade(&cache);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                match weak.upgrade() {
                    Some(cache) => cache.sweep(),
                    None => return,
                }
            }
        });
        cache
    }

    /// Reads the value of `key`. If it is not cached, it is initialized with `first`, and `task` is
    /// started to update it. `read` runs under the cache's lock, so that a value cannot be evicted
    /// between look-up and subscription.
    pub(super) fn find_or_start<F, R>(
        &self,
        key: &K,
        runtime: &Handle,
        first: impl FnOnce() -> V,
        task: impl FnOnce(watch::Sender<V>) -> F,
        read: impl FnOnce(&watch::Sender<V>) -> R,
    ) -> R
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut entries = self.entries.lock();
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let sender = watch::Sender::new(first());
            let task = runtime.spawn(task(sender.clone()));
            Entry {
                sender,
                task: task.abort_handle(),
                is_idle: false,
            }
        });
        entry.is_idle = false;
        read(&entry.sender)
    }

    /// Whether `key` is cached, or can be without exceeding `limit` values.
    pub(super) fn has_room_for(&self, key: &K, limit: usize) -> bool {
        let entries = self.entries.lock();
        entries.len() < limit || entries.contains_key(key)
    }

    /// Evicts a value immediately if `predicate` holds.
    pub(super) fn remove_if(&self, key: &K, predicate: impl FnOnce(&V) -> bool) {
        let mut entries = self.entries.lock();
        let remove = entries
            .get(key)
            .is_some_and(|entry| predicate(&entry.sender.borrow()));
        if remove {
            entries.remove(key);
        }
    }

    fn sweep(&self) {
        self.entries.lock().retain(|_, entry| {
            let is_used = entry.sender.receiver_count() > 0 || entry.sender.borrow().users() > 0;
            let keep = is_used || !entry.is_idle;
            entry.is_idle = !is_used;
            keep
        });
    }
}

impl<V> Drop for Entry<V> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
