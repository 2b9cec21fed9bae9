//! Readiness: the named conditions that must hold before a daemon accepts traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// All conditions of one daemon. A daemon without conditions is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Arc<Mutex<Vec<Condition>>>,
}

/// One condition, which initially does not hold.
#[derive(Clone, Debug)]
pub struct Condition {
    name: &'static str,
    holds: Arc<AtomicBool>,
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition. Its name follows "waiting for " in the response of `/ready`.
    pub fn condition(&self, name: &'static str) -> Condition {
        let condition = Condition {
            name,
            holds: Arc::default(),
        };
        self.conditions.lock().push(condition.clone());
        condition
    }

    /// Returns the names of the conditions that do not hold.
    pub fn missing(&self) -> Vec<&'static str> {
        self.conditions
            .lock()
            .iter()
            .filter(|condition| !condition.holds())
            .map(|condition| condition.name)
            .collect()
    }

    pub fn is_ready(&self) -> bool {
        self.missing().is_empty()
    }
}

impl Condition {
    pub fn set(&self, holds: bool) {
        self.holds.store(holds, Ordering::Release);
    }

    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::Acquire)
    }
}
