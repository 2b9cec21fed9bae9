//! The memory of the reviews in flight: their bodies, the objects parsed from them, and the
//! responses that have not been sent.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::metered::Budget;

/// The memory that all reviews share beyond the part of each.
#[derive(Clone, Debug)]
pub(super) struct MemoryPool(Arc<Semaphore>);

/// The memory of one review, which returns to the pool when it is dropped.
#[derive(Debug)]
pub struct ReviewMemory {
    pool: MemoryPool,
    // Charged by the task of the review, and by the thread of a validator.
    taken: Mutex<Taken>,
}

#[derive(Debug)]
struct Taken {
    bytes: usize,
    /// The bytes that may be taken: [`OWN_MEMORY`], and the permits from the pool.
    granted: usize,
    permit: Option<OwnedSemaphorePermit>,
    refusal: Option<Refusal>,
}

/// Why a review gets no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "it takes more than {} MiB of memory, the most for one review; split the object",
        MAX_MEMORY >> 20
    )]
    Review,
    #[error(
        "the reviews in flight take more than {} MiB of memory; try again later",
        POOL >> 20
    )]
    Pool,
}

/// The memory that each review has without the pool. Most reviews of pods have 10 KiB, and their
/// objects take five times as much.
pub(super) const OWN_MEMORY: usize = 128 * 1024;

/// The memory beyond [`OWN_MEMORY`] of all reviews: clients that are not the API server can fill
/// it, and then only large reviews fail.
pub(super) const POOL: usize = 64 * 1024 * 1024;

/// The memory of one review. A pod as large as etcd stores takes some 10 MiB, and so does a route
/// with all the 8,192 items that validators admit.
pub(super) const MAX_MEMORY: usize = 32 * 1024 * 1024;

/// Permits are taken from the pool in multiples of it.
const CHUNK: usize = 4 * 1024;

impl MemoryPool {
    pub(super) fn review(&self) -> Arc<ReviewMemory> {
        Arc::new(ReviewMemory {
            pool: self.clone(),
            taken: Mutex::new(Taken {
                bytes: 0,
                granted: OWN_MEMORY,
                permit: None,
                refusal: None,
            }),
        })
    }
}

impl Default for MemoryPool {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(POOL)))
    }
}

impl ReviewMemory {
    /// Returns a review that shares its memory with no other.
    pub fn alone() -> Arc<Self> {
        MemoryPool::default().review()
    }

    pub(super) fn charge(&self, bytes: usize) -> Result<(), Refusal> {
        let mut taken = self.taken.lock();
        let charged = taken.charge(bytes, &self.pool);
        taken.refusal = charged.err().or(taken.refusal);
        charged
    }

    /// Returns why the last refused charge was refused.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.taken.lock().refusal
    }
}

impl Budget for ReviewMemory {
    fn take(&self, bytes: usize) -> bool {
        self.charge(bytes).is_ok()
    }
}

impl Taken {
    fn charge(&mut self, bytes: usize, pool: &MemoryPool) -> Result<(), Refusal> {
        let wanted = self.bytes.saturating_add(bytes);
        if wanted > MAX_MEMORY {
            return Err(Refusal::Review);
        }
        let missing = wanted.saturating_sub(self.granted);
        if missing > 0 {
            let more = missing.next_multiple_of(CHUNK);
            // At most MAX_MEMORY.
            let permit = pool.0.clone().try_acquire_many_owned(more as u32);
            let permit = permit.map_err(|_none_left| Refusal::Pool)?;
            match &mut self.permit {
                Some(all) => all.merge(permit),
                None => self.permit = Some(permit),
            }
            self.granted += more;
        }
        self.bytes = wanted;
        Ok(())
    }
}
