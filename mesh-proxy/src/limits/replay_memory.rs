//! The limit of the bytes that all requests together keep of their bodies, so that they can be sent
//! again. [`crate::http::body`] reserves them.
//!
//! A body that gets no reservation is sent as it is, and its request is not retried. The limit
//! therefore costs retries under load, never requests.

use std::sync::Arc;

use crate::sync::{AtomicUsize, Ordering};

use mesh_planted::Bug;

/// The bytes that are kept, shared by all data threads without a lock.
#[derive(Debug)]
pub(crate) struct ReplayMemory {
    limit: usize,
    used: AtomicUsize,
}

/// Bytes that one request keeps. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Arc<ReplayMemory>,
    bytes: usize,
}

impl ReplayMemory {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
        }
    }

    /// Returns an empty reservation.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation {
            memory: self.clone(),
            bytes: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    #[cfg(feature = "simulation")]
    pub(super) fn free(&self) -> usize {
        let used = self.used.load(Ordering::Relaxed);
        self.limit.saturating_sub(used)
    }

    fn reserve(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let updated = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        updated.is_ok()
    }
}

impl Reservation {
    /// Reserves more bytes. Returns false, and changes nothing, if the limit does not allow it.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let is_granted = self.memory.reserve(bytes);
        if is_granted {
            self.bytes += bytes;
        }
        is_granted
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if Bug::ReplayMemoryLeak.is_planted() {
            return;
        }
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn reservations_of_all_threads_stay_below_limit() {
        let memory = Arc::new(ReplayMemory::new(1_000));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let mut reservation = memory.reservation();
                        while reservation.grow(7) {}
                        assert!(memory.used() <= 1_000);
                    }
                });
            }
        });
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn refused_growth_changes_nothing() {
        let memory = Arc::new(ReplayMemory::new(10));
        let mut one = memory.reservation();
        assert!(one.grow(10) && !one.grow(1) && !one.grow(usize::MAX));
        assert_eq!(memory.used(), 10);
        drop(one);
        assert!(memory.reservation().grow(10));
    }
}
