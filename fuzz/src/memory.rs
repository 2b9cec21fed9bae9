//! The current and the peak heap use of the process, for targets that limit them.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Resets the peak. Returns the current use in bytes.
pub(crate) fn start() -> usize {
    ALLOCATOR.reset_peak_usage();
    ALLOCATOR.current_usage()
}

/// Returns the peak use in bytes since [`start`].
pub(crate) fn peak() -> usize {
    ALLOCATOR.peak_usage()
}
