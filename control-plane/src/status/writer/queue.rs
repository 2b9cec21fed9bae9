//! The objects whose status differs, each once, with a bound.

use std::collections::{HashSet, VecDeque};

use crate::status::objects::ReportedKey;

/// A queue of objects.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<ReportedKey>,
    members: HashSet<ReportedKey>,
}

/// Linkerd's number. Objects that do not fit are found by the next comparison.
const CAPACITY: usize = 10_000;

impl Queue {
    /// Returns `false` if the queue is full.
    pub(super) fn push(&mut self, key: ReportedKey) -> bool {
        if self.order.len() >= CAPACITY {
            return false;
        }
        if self.members.insert(key.clone()) {
            self.order.push_back(key);
        }
        true
    }

    pub(super) fn pop(&mut self) -> Option<ReportedKey> {
        let key = self.order.pop_front()?;
        self.members.remove(&key);
        Some(key)
    }

    pub(super) fn contains(&self, key: &ReportedKey) -> bool {
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
    use mesh_objects::model::{Name, ReportedKind};

    fn key(number: usize) -> ReportedKey {
        ReportedKey {
            kind: ReportedKind::GatewayHttpRoute,
            name: Name::new("shop", &format!("route-{number}")),
        }
    }

    #[test]
    fn queue_has_each_object_once_in_order() {
        let mut queue = Queue::default();
        for number in [1, 2, 1, 3, 2] {
            assert!(queue.push(key(number)));
        }
        assert_eq!(queue.pop(), Some(key(1)));
        assert!(queue.push(key(1)));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [key(2), key(3), key(1)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn full_queue_refuses_objects() {
        let mut queue = Queue::default();
        for number in 0..CAPACITY {
            assert!(queue.push(key(number)));
        }
        assert!(!queue.push(key(CAPACITY)));
        assert_eq!(queue.clear(), CAPACITY);
        assert!(queue.push(key(CAPACITY)) && queue.contains(&key(CAPACITY)));
    }
}
