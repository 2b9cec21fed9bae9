//! The allocator's function that no crate exports.

// Links its library, also where another allocator is used.
use mimalloc as _;

unsafe extern "C" {
    /// Frees what the heap of the calling thread does not use. With `force`, also returns that, and
    /// what other threads have freed, to the kernel at once.
    safe fn mi_collect(force: bool);
}

/// Returns memory that connections have freed from the allocator to the kernel. The allocator does
/// so when the thread allocates much, which it does not while connections are refused.
pub(crate) fn return_freed() {
    mi_collect(true);
}
