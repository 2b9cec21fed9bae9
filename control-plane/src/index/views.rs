//! Watched values.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use tokio::sync::watch;

/// The watched values of one type. A value is dropped when it has no receiver.
#[derive(Debug)]
pub(super) struct Views<K, V> {
    // gRPC streams have the receivers. A watch channel only has the current value, so a slow reader
    // does not block others and skips outdated values.
    senders: HashMap<K, watch::Sender<Arc<V>>>,
    /// Values without a receiver are removed at this number of values.
    sweep_at: usize,
}

/// The minimum of `sweep_at`.
const MIN_SWEEP: usize = 64;

impl<K, V> Default for Views<K, V> {
    fn default() -> Self {
        Self {
            senders: HashMap::new(),
            sweep_at: MIN_SWEEP,
        }
    }
}

impl<K: Eq + Hash, V> Views<K, V> {
    /// Watches a value. `compute` returns the current one. It is not called if there is a view,
    /// because views are kept current. The number of values is at most twice the number that had
    /// receivers at the last sweep, or `MIN_SWEEP`, even if clients connect and disconnect while no
    /// object changes.
    pub(super) fn watch(
        &mut self,
        key: K,
        compute: impl FnOnce(&K) -> Arc<V>,
    ) -> watch::Receiver<Arc<V>> {
        if self.senders.len() >= self.sweep_at {
            self.senders.retain(|_, sender| !sender.is_closed());
            self.sweep_at = (2 * self.senders.len()).max(MIN_SWEEP);
        }
        let sender = self
            .senders
            .entry(key)
            .or_insert_with_key(|key| watch::Sender::new(compute(key)));
        sender.subscribe()
    }

    /// Publishes what `next` returns for each affected value, unless it returns the value itself.
    pub(super) fn replace(
        &mut self,
        affected: impl Fn(&K) -> bool,
        mut next: impl FnMut(&K, &Arc<V>) -> Arc<V>,
    ) {
        self.senders.retain(|key, sender| {
            if sender.is_closed() {
                return false;
            }
            if affected(key) {
                sender.send_if_modified(|current| {
                    let next = next(key, current);
                    let changed = !Arc::ptr_eq(current, &next);
                    *current = next;
                    changed
                });
            }
            true
        });
    }

    /// Ends the values that `is_ended` names, for all receivers.
    pub(super) fn end(&mut self, is_ended: impl Fn(&K) -> bool) {
        self.senders.retain(|key, _| !is_ended(key));
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.senders.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.senders.len()
    }
}

impl<K: Eq + Hash, V: PartialEq> Views<K, V> {
    /// Recomputes the affected values and publishes the values that changed. If `compute` returns
    /// `None`, the last value stays.
    pub(super) fn refresh(
        &mut self,
        affected: impl Fn(&K) -> bool,
        compute: impl Fn(&K) -> Option<V>,
    ) {
        self.replace(affected, |key, current| match compute(key) {
            Some(value) if value != **current => Arc::new(value),
            _ => current.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_values_are_published_and_unwatched_ones_removed() {
        let mut views = Views::<u8, u8>::default();
        let mut one = views.watch(1, |_| Arc::new(10));
        let two = views.watch(2, |_| Arc::new(20));
        views.refresh(|_| true, |key| Some(key * 10));
        assert!(
            !one.has_changed().unwrap(),
            "an equal value is not published"
        );
        views.refresh(|key| *key == 1, |_| Some(11));
        assert_eq!(**one.borrow_and_update(), 11);
        assert_eq!(**two.borrow(), 20);
        views.refresh(|_| true, |_| None);
        assert!(!one.has_changed().unwrap(), "the last value stays");
        drop(two);
        views.refresh(|_| true, |_| None);
        assert_eq!(views.len(), 1);
        views.end(|key| *key == 2);
        assert!(one.has_changed().is_ok());
        views.end(|key| *key == 1);
        assert!(one.has_changed().is_err());
    }

    #[test]
    fn unwatched_values_are_bounded_without_changes() {
        let mut views = Views::<u32, u32>::default();
        let kept = views.watch(0, |_| Arc::default());
        for key in 1..100_000 {
            drop(views.watch(key, |_| Arc::default()));
            assert!(views.len() <= MIN_SWEEP, "{} at {key}", views.len());
        }
        assert!(kept.same_channel(&views.watch(0, |_| Arc::default())));
    }
}
