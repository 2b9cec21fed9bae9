//! Fail-fast: how long requests wait for an endpoint, how many may, and what those that come after a fruitless wait are told.
//!
//! The gate is open at first. Requests that find no endpoint wait; when one has waited in vain for the whole time limit, all of them fail and the gate shuts.
//! While it is shut requests fail at once. It opens when an endpoint works again.

use std::cell::Cell;
use std::time::Duration;

/// The gate in front of one destination.
#[derive(Debug)]
pub struct Gate {
    shut: Cell<bool>,
    waiting: Cell<usize>,
    capacity: usize,
    patience: Duration,
}

/// Why a request is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It waited in vain.
    FailFast,
    /// Too many wait already, or it is known that waiting is in vain.
    Shed,
}

/// One request that waits. Dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Waiting<'a>(&'a Gate);

impl Gate {
    pub fn new(capacity: usize, patience: Duration) -> Self {
        Self {
            shut: Cell::new(false),
            waiting: Cell::new(0),
            capacity,
            patience,
        }
    }

    pub fn is_shut(&self) -> bool {
        self.shut.get()
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn shut(&self) {
        self.shut.set(true);
    }

    pub(super) fn open(&self) {
        self.shut.set(false);
    }

    pub(super) fn wait(&self) -> Result<Waiting<'_>, Refusal> {
        if self.is_shut() || self.waiting.get() >= self.capacity {
            return Err(Refusal::Shed);
        }
        self.waiting.set(self.waiting.get() + 1);
        Ok(Waiting(self))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}
