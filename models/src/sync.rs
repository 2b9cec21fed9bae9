//! The types of the product's modules `sync`, from loom.

use std::fmt;

use loom::sync::MutexGuard;
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// As parking_lot's: its lock has no poison.
#[derive(Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// As std's, for one thread that initializes and others that read.
pub struct OnceLock<T> {
    is_set: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poison) => poison.into_inner(),
        }
    }
}

impl<T> OnceLock<T> {
    pub fn new() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            value: std::sync::OnceLock::new(),
        }
    }

    /// Returns the value, which happened before if another thread has set it.
    pub fn get(&self) -> Option<&T> {
        // Orders as in std.
        let is_set = self.is_set.load(Ordering::Acquire);
        is_set.then(|| self.value.get()).flatten()
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        // Without std's lock: the threads of loom share one of the kernel, which must not block.
        let made = make();
        let value = self.value.get_or_init(|| made);
        self.is_set.store(true, Ordering::Release);
        value
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

// Written by hand because reading a value is a step of the model.

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceLock").finish_non_exhaustive()
    }
}
