//! Keeps the proxy from being killed for the memory it takes, and all its connections with it:
//! while it takes more than it may, new connections are closed at once. Those that exist go on, and
//! memory comes back as they end. Asked by [`crate::worker`] for each connection that it accepts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use mesh_runtime::memory::{self, Container};

use crate::config::MemoryLimit;

/// Shared by all data threads.
#[derive(Debug)]
pub struct Memory {
    allowance: Option<Allowance>,
    began: Instant,
    /// When somebody looked last, in milliseconds.
    looked: AtomicU64,
    is_short: AtomicBool,
}

/// How much may be taken, and who takes it.
#[derive(Debug)]
struct Allowance {
    bytes: u64,
    of: Of,
}

#[derive(Debug)]
enum Of {
    Container(Container),
    Process,
}

/// Looking costs some microseconds. Within this time, connections could take some megabytes more.
const LOOK_EVERY_MS: u64 = 100;

impl Memory {
    pub fn new(limit: MemoryLimit) -> Self {
        let allowance = match limit {
            MemoryLimit::None => None,
            MemoryLimit::Bytes(bytes) => Some(Allowance {
                bytes,
                of: Of::Process,
            }),
            MemoryLimit::Container => Container::current().map(|container| Allowance {
                bytes: share_of(container.limit()),
                of: Of::Container(container),
            }),
        };
        Self {
            allowance,
            began: Instant::now(),
            looked: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
        }
    }

    /// Whether more is taken than may be, a moment ago.
    pub fn is_short(&self) -> bool {
        let Some(allowance) = &self.allowance else {
            return false;
        };
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.look(now, allowance.bytes, || allowance.of.used());
        self.is_short.load(Ordering::Relaxed)
    }

    /// Looks, unless somebody has just done so.
    fn look(&self, now: u64, allowed: u64, used: impl FnOnce() -> Option<u64>) {
        // The first look is due at once.
        let now = now.saturating_add(LOOK_EVERY_MS);
        let looked = self.looked.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(looked) >= LOOK_EVERY_MS;
        let exchanged = || {
            self.looked
                .compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed)
        };
        if !is_due || exchanged().is_err() {
            return;
        }
        let Some(used) = used() else {
            return;
        };
        let is_short = used > allowed;
        if self.is_short.swap(is_short, Ordering::Relaxed) == is_short {
            return;
        }
        let (used, allowed) = (used >> 20, allowed >> 20);
        if is_short {
            tracing::warn!(
                used_mib = used,
                allowed_mib = allowed,
                "Memory is short: new connections are closed (see MESH_PROXY_MAX_MEMORY)"
            );
        } else {
            tracing::info!(
                used_mib = used,
                allowed_mib = allowed,
                "There is memory for new connections again"
            );
        }
    }
}

impl Of {
    fn used(&self) -> Option<u64> {
        match self {
            Self::Container(container) => container.used(),
            Self::Process => memory::resident(),
        }
    }
}

/// Nine tenths. The rest is for what connections take that are there, until somebody looks again.
fn share_of(limit: u64) -> u64 {
    limit / 10 * 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_decides_and_is_looked_at_now_and_then() {
        let memory = Memory::new(MemoryLimit::None);
        for (now, taken, is_short) in [
            (0, 91, true),
            (99, 10, true),
            (100, 10, false),
            (150, 91, false),
            (1000, 90, false),
            (1100, 91, true),
        ] {
            memory.look(now, share_of(100), || Some(taken));
            assert_eq!(memory.is_short.load(Ordering::Relaxed), is_short, "{now}");
        }
    }

    #[test]
    fn no_limit_is_never_reached() {
        assert!(!Memory::new(MemoryLimit::None).is_short());
        assert!(Memory::new(MemoryLimit::Bytes(1)).is_short());
    }
}
