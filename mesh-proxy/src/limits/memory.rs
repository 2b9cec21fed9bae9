//! Keeps the proxy below its memory limit, so that the kernel does not kill it with all its
//! connections: above the limit, [`crate::worker`] closes new connections. Existing ones continue,
//! and memory is freed when they close.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use mesh_runtime::memory::{self, CgroupMemory};

pub(crate) use self::allocator::return_freed;
use crate::config::MemoryLimit;

mod allocator;

/// The memory use of the process, shared by all data threads.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Option<MemoryBudget>,
    start: Instant,
    /// When the use was last measured, in milliseconds since `start`.
    measured_at: AtomicU64,
    is_exceeded: AtomicBool,
}

/// The most memory that the proxy may use, and what it applies to.
#[derive(Debug)]
struct MemoryBudget {
    bytes: u64,
    source: UsageSource,
}

#[derive(Debug)]
enum UsageSource {
    Container(CgroupMemory),
    Process,
}

/// Measuring takes a few microseconds. In this interval, connections may take a few megabytes.
const MEASURE_INTERVAL_MS: u64 = 100;

impl Memory {
    pub(crate) fn new(limit: MemoryLimit) -> Self {
        let budget = match limit {
            MemoryLimit::None => None,
            MemoryLimit::Bytes(bytes) => Some(MemoryBudget {
                bytes,
                source: UsageSource::Process,
            }),
            MemoryLimit::Container => CgroupMemory::current().map(|container| MemoryBudget {
                bytes: budget_of(container.limit()),
                source: UsageSource::Container(container),
            }),
        };
        Self {
            budget,
            start: Instant::now(),
            measured_at: AtomicU64::new(0),
            is_exceeded: AtomicBool::new(false),
        }
    }

    /// Whether the last measurement exceeded the budget.
    pub(crate) fn is_exceeded(&self) -> bool {
        let Some(budget) = &self.budget else {
            return false;
        };
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.update(now, budget.bytes, || budget.source.used());
        self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Measures the use, unless a thread has done so within the interval.
    fn update(&self, now: u64, allowed: u64, used: impl FnOnce() -> Option<u64>) {
        // The first measurement is due immediately.
        let now = now.saturating_add(MEASURE_INTERVAL_MS);
        let measured_at = self.measured_at.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(measured_at) >= MEASURE_INTERVAL_MS;
        let exchanged = || {
            self.measured_at.compare_exchange(
                measured_at,
                now,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
        };
        if !is_due || exchanged().is_err() {
            return;
        }
        let Some(used) = used() else {
            return;
        };
        let is_exceeded = used > allowed;
        if self.is_exceeded.swap(is_exceeded, Ordering::Relaxed) == is_exceeded {
            return;
        }
        let (used, allowed) = (used >> 20, allowed >> 20);
        if is_exceeded {
            tracing::warn!(
                used_mib = used,
                allowed_mib = allowed,
                "Memory limit exceeded; closing new connections (see MESH_PROXY_MAX_MEMORY)"
            );
        } else {
            tracing::info!(
                used_mib = used,
                allowed_mib = allowed,
                "Memory use is below the limit; accepting connections"
            );
        }
    }
}

impl UsageSource {
    fn used(&self) -> Option<u64> {
        match self {
            Self::Container(container) => container.used(),
            Self::Process => memory::resident(),
        }
    }
}

/// Returns nine tenths of the limit. The rest is for existing connections until the next
/// measurement.
fn budget_of(limit: u64) -> u64 {
    limit / 10 * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_measured_once_per_interval() {
        let memory = Memory::new(MemoryLimit::None);
        for (now, used, is_exceeded) in [
            (0, 91, true),
            (99, 10, true),
            (100, 10, false),
            (150, 91, false),
            (1000, 90, false),
            (1100, 91, true),
        ] {
            memory.update(now, budget_of(100), || Some(used));
            assert_eq!(
                memory.is_exceeded.load(Ordering::Relaxed),
                is_exceeded,
                "{now}"
            );
        }
    }

    #[test]
    fn memory_without_limit_is_never_exceeded() {
        assert!(!Memory::new(MemoryLimit::None).is_exceeded());
        assert!(Memory::new(MemoryLimit::Bytes(1)).is_exceeded());
    }
}
