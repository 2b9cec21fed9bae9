//! A cache of watched values. One task on the control thread updates each value; all data threads
//! share it. What an evicted value leaves is kept for its next task ([`LastValues`]).

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::last_values::LastValues;
use crate::random::Map;
use crate::watch;

/// Watched values by key.
pub(super) struct WatchCache<K, V: SharedWatch> {
    // Locked by any thread for a look-up, once per connection or balancer.
    state: Mutex<State<K, V>>,
}

/// A cached value that may have its own receivers.
pub(super) trait SharedWatch {
    /// The part of an evicted value that is kept.
    type Last: Send;

    /// The number of receivers that the value itself has.
    fn users(&self) -> usize {
        0
    }

    /// Returns what to keep when the value is evicted, and its size in the unit of the cache's
    /// limit.
    fn last(&self) -> Option<(Self::Last, usize)>;
}

struct State<K, V: SharedWatch> {
    entries: Map<K, Entry<V>>,
    last: LastValues<K, V::Last>,
}

struct Entry<V> {
    sender: watch::Sender<V>,
    task: AbortHandle,
    /// Whether the value was unused at the last sweep.
    is_idle: bool,
}

impl<K, V> WatchCache<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: SharedWatch + Send + Sync + 'static,
{
    /// Creates a cache that evicts values after they are unused for `idle`, and at most for twice
    /// this time. The part of them that is kept has at most the size `last_limit`.
    pub(super) fn new(idle: Duration, last_limit: usize, runtime: &Handle) -> Arc<Self> {
        let cache = Arc::new(Self {
            state: Mutex::new(State {
                entries: Map::default(),
                last: LastValues::new(last_limit),
            }),
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
    /// started to update it, with the part that is kept of an earlier value. `read` runs under the
    /// cache's lock, so that a value cannot be evicted between look-up and subscription.
    pub(super) fn find_or_start<F, R>(
        &self,
        key: &K,
        runtime: &Handle,
        first: impl FnOnce() -> V,
        task: impl FnOnce(watch::Sender<V>, Option<V::Last>) -> F,
        read: impl FnOnce(&watch::Sender<V>) -> R,
    ) -> R
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut state = self.state.lock();
        let State { entries, last } = &mut *state;
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let sender = watch::Sender::new(first());
            let task = runtime.spawn(task(sender.clone(), last.take(key, Instant::now())));
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
        let entries = &self.state.lock().entries;
        entries.len() < limit || entries.contains_key(key)
    }

    /// Evicts a value immediately if `predicate` holds.
    pub(super) fn remove_if(&self, key: &K, predicate: impl FnOnce(&V) -> bool) {
        let entries = &mut self.state.lock().entries;
        let remove = entries
            .get(key)
            .is_some_and(|entry| predicate(&entry.sender.borrow()));
        if remove {
            entries.remove(key);
        }
    }

    fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let State { entries, last } = &mut *state;
        entries.retain(|key, entry| {
            let is_used = entry.sender.receiver_count() > 0 || entry.sender.borrow().users() > 0;
            let keep = is_used || !entry.is_idle;
            entry.is_idle = !is_used;
            if !keep && let Some((value, size)) = entry.sender.borrow().last() {
                last.insert(key.clone(), value, size, now);
            }
            keep
        });
        last.trim(now);
    }
}

impl<V> Drop for Entry<V> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
