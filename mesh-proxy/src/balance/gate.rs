//! Fail-fast: how long requests wait for an endpoint, how many may, and what those that come after
//! a fruitless wait are told.
//!
//! The gate is open at first. Requests that find no endpoint wait; when one has waited in vain for
//! the whole time limit, all of them fail and the gate shuts. While it is shut requests fail at
//! once. It opens when an endpoint works again.

use std::cell::Cell;
use std::time::Duration;

use crate::telemetry::balancer::Queue;

/// The gate in front of one destination.
#[derive(Debug)]
pub struct Gate {
    shut: Cell<bool>,
    waiting: Cell<usize>,
    capacity: usize,
    patience: Duration,
    metrics: Queue,
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
    pub fn new(capacity: usize, patience: Duration, metrics: Queue) -> Self {
        metrics.begins(patience);
        Self {
            metrics,
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
        if !self.shut.replace(true) {
            self.metrics.gate_shut();
        }
    }

    pub(super) fn open(&self) {
        if self.shut.replace(false) {
            self.metrics.gate_opened();
        }
    }

    /// Counts somebody who asks for an endpoint.
    pub(super) fn asked(&self) {
        self.metrics.requests.inc();
    }

    /// Somebody has got an endpoint after this wait.
    pub(super) fn waited(&self, wait: Duration) {
        self.metrics.latency.observe(wait.as_secs_f64());
    }

    pub(super) fn wait(&self) -> Result<Waiting<'_>, Refusal> {
        if self.is_shut() || self.waiting.get() >= self.capacity {
            return Err(Refusal::Shed);
        }
        self.waiting.set(self.waiting.get() + 1);
        self.metrics.length.inc();
        Ok(Waiting(self))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        self.0.metrics.length.dec();
    }
}
