//! How much memory this process holds, and the most it has held: for targets that say how much an
//! input may cost.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Begins to measure; returns what is held now.
pub(crate) fn start() -> usize {
    ALLOCATOR.reset_peak_usage();
    ALLOCATOR.current_usage()
}

/// The most that was held since.
pub(crate) fn peak() -> usize {
    ALLOCATOR.peak_usage()
}
