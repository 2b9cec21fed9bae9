//! Computed values that somebody watches.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use tokio::sync::watch;

/// The watched values of one kind. A value lives as long as somebody watches it.
#[derive(Debug)]
pub(super) struct Views<K, V> {
    // The senders' side of what gRPC streams hold. A watch keeps the newest value only, so a slow reader holds nobody up and skips what is outdated.
    senders: HashMap<K, watch::Sender<Arc<V>>>,
}

impl<K, V> Default for Views<K, V> {
    fn default() -> Self {
        Self {
            senders: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash, V: PartialEq> Views<K, V> {
    /// Watches a value, which must be current.
    pub(super) fn watch(&mut self, key: K, value: V) -> watch::Receiver<Arc<V>> {
        let sender = self
            .senders
            .entry(key)
            .or_insert_with(|| watch::Sender::new(Arc::new(value)));
        sender.subscribe()
    }

    /// Computes the affected values again and publishes those that changed. Where there is no value any more, the last one stays.
    pub(super) fn refresh(
        &mut self,
        affected: impl Fn(&K) -> bool,
        compute: impl Fn(&K) -> Option<V>,
    ) {
        self.senders.retain(|key, sender| {
            if sender.is_closed() {
                return false;
            }
            if affected(key)
                && let Some(value) = compute(key)
            {
                sender.send_if_modified(|current| {
                    let changed = **current != value;
                    if changed {
                        *current = Arc::new(value);
                    }
                    changed
                });
            }
            true
        });
    }

    pub(super) fn len(&self) -> usize {
        self.senders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishes_changes_and_forgets_what_nobody_watches() {
        let mut views = Views::<u8, u8>::default();
        let mut one = views.watch(1, 10);
        let two = views.watch(2, 20);
        views.refresh(|_| true, |key| Some(key * 10));
        assert!(!one.has_changed().unwrap(), "an equal value is no change");
        views.refresh(|key| *key == 1, |_| Some(11));
        assert_eq!(**one.borrow_and_update(), 11);
        assert_eq!(**two.borrow(), 20);
        views.refresh(|_| true, |_| None);
        assert!(!one.has_changed().unwrap(), "the last value stays");
        drop(two);
        views.refresh(|_| true, |_| None);
        assert_eq!(views.len(), 1);
    }
}
