//! What simulated proxies use: memory, if [`Heap`](crate::Heap) is the program's allocator, and
//! work. All of it is counted by thread, as a world has one.

use std::cell::Cell;

/// What the proxies of this thread have used since [`start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that they hold, also from before the start.
    pub held: usize,
    /// The most bytes that they have held at once.
    pub peak: usize,
    /// Bytes that they have allocated.
    pub allocated: usize,
    /// Bytes that they have read from connections.
    pub read: usize,
    /// Operations on connections.
    pub calls: usize,
}

thread_local! {
    /// Whether a proxy runs.
    static IS_PROXY: Cell<bool> = const { Cell::new(false) };
    static USAGE: Cell<Usage> = const { Cell::new(Usage { held: 0, peak: 0, allocated: 0, read: 0, calls: 0 }) };
}

/// Begins to count. Returns the bytes that the proxies hold.
pub fn start() -> usize {
    let Usage { held, .. } = USAGE.get();
    USAGE.set(Usage {
        held,
        peak: held,
        ..Usage::default()
    });
    held
}

/// Returns what has been used since [`start`].
pub fn get() -> Usage {
    USAGE.get()
}

fn change(change: impl FnOnce(&mut Usage)) {
    let mut usage = USAGE.get();
    change(&mut usage);
    USAGE.set(usage);
}

/// Whether a proxy runs.
pub(crate) fn is_proxy() -> bool {
    IS_PROXY.get()
}

/// A proxy has read bytes.
pub(crate) fn note_read(bytes: usize) {
    if is_proxy() {
        change(|usage| usage.read += bytes);
    }
}

/// The scope of an operation on a connection, which belongs to the network.
pub(crate) fn call() -> Scope {
    if is_proxy() {
        change(|usage| usage.calls += 1);
    }
    Scope::new(false)
}

/// Whether allocations belong to a proxy, until it is dropped.
#[must_use]
pub(crate) struct Scope(bool);

impl Scope {
    pub(crate) fn new(is_proxy: bool) -> Self {
        Self(IS_PROXY.replace(is_proxy))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        IS_PROXY.set(self.0);
    }
}

/// A proxy has allocated bytes.
pub(crate) fn add(size: usize) {
    change(|usage| {
        usage.held += size;
        usage.peak = usage.peak.max(usage.held);
        usage.allocated += size;
    });
}

/// Bytes that a proxy had allocated were freed.
pub(crate) fn subtract(size: usize) {
    // Another thread may have allocated it.
    change(|usage| usage.held = usage.held.saturating_sub(size));
}
