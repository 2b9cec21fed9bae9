//! The objects that differ, each once, with a bound.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// A queue of the keys of objects.
#[derive(Debug)]
pub(super) struct Queue<K> {
    order: VecDeque<K>,
    members: HashSet<K>,
}

/// Linkerd's number. Objects that do not fit are found by the next comparison.
const CAPACITY: usize = 10_000;

impl<K: Clone + Eq + Hash> Queue<K> {
    pub(super) fn new() -> Self {
        Self {
            order: VecDeque::new(),
            members: HashSet::new(),
        }
    }

    /// Returns `false` if the queue is full.
    pub(super) fn push(&mut self, key: K) -> bool {
        if self.order.len() >= CAPACITY {
            return false;
        }
        if self.members.insert(key.clone()) {
            self.order.push_back(key);
        }
        true
    }

    pub(super) fn pop(&mut self) -> Option<K> {
        let key = self.order.pop_front()?;
        self.members.remove(&key);
        if self.order.is_empty() {
            // The first comparison may have filled it.
            *self = Self::new();
        }
        Some(key)
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.members.contains(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the number of objects that it had.
    pub(super) fn clear(&mut self) -> usize {
        self.members.clear();
        std::mem::take(&mut self.order).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn queue_has_each_object_once_in_order() {
        let mut queue = Queue::new();
        for number in [1, 2, 1, 3, 2] {
            assert!(queue.push(number));
        }
        assert_eq!(queue.pop(), Some(1));
        assert!(queue.push(1));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [2, 3, 1]);
        assert!(queue.is_empty());
    }

    #[test]
    fn full_queue_refuses_objects() {
        let mut queue = Queue::new();
        for number in 0..CAPACITY {
            assert!(queue.push(number));
        }
        assert!(!queue.push(CAPACITY));
        assert_eq!(queue.clear(), CAPACITY);
        assert!(queue.push(CAPACITY) && queue.contains(&CAPACITY));
    }
}
