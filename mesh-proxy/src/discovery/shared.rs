//! A table of followed values: each is kept up to date by one task on the control thread and shared
//! by all who ask.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Followed values by key.
pub(super) struct Shared<K, V> {
    // Taken once per connection or balancer, by any thread, for a look-up.
    entries: Mutex<HashMap<K, Entry<V>>>,
}

/// A value that is itself shared further: its users count as receivers.
pub(super) trait Followed {
    fn users(&self) -> usize {
        0
    }
}

struct Entry<V> {
    sender: watch::Sender<V>,
    task: AbortHandle,
    /// Whether the last sweep found nobody who receives it.
    idle: bool,
}

impl<T> Followed for Arc<T> {}

impl<K, V> Shared<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Followed + Send + Sync + 'static,
{
    /// Values that nobody received for `idle`, and at most as long again, are forgotten.
    pub(super) fn new(idle: Duration, runtime: &Handle) -> Arc<Self> {
        let shared = Arc::new(Self {
            entries: Mutex::default(),
        });
        // Two sweeps in a row must find a value unused. Never zero: that would spin.
        let pause = idle.max(Duration::from_millis(1));
        let weak = Arc::downgrade(&shared);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                match weak.upgrade() {
                    Some(shared) => shared.sweep(),
                    None => return,
                }
            }
        });
        shared
    }

    /// Reads the value of `key`. When there is none it begins as `first` and `task` keeps it up to
    /// date. `read` runs under the table's lock, so that a value cannot be forgotten between being
    /// found and being subscribed to.
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
                idle: false,
            }
        });
        entry.idle = false;
        read(&entry.sender)
    }

    /// Forgets a value at once, if `unwanted` says so.
    pub(super) fn forget_if(&self, key: &K, unwanted: impl FnOnce(&V) -> bool) {
        let mut entries = self.entries.lock();
        let remove = entries
            .get(key)
            .is_some_and(|entry| unwanted(&entry.sender.borrow()));
        if remove {
            entries.remove(key);
        }
    }

    fn sweep(&self) {
        self.entries.lock().retain(|_, entry| {
            let used = entry.sender.receiver_count() > 0 || entry.sender.borrow().users() > 0;
            let keep = used || !entry.idle;
            entry.idle = !used;
            keep
        });
    }
}

impl<V> Drop for Entry<V> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
