//! Fail-fast: limits how long and how many requests wait for an endpoint.
//!
//! The gate is open at first, and requests wait if no endpoint is available. When one has waited
//! for the whole fail-fast timeout, the gate shuts and all queued requests fail. While the gate is
//! shut, requests without an available endpoint fail immediately. It opens when an endpoint is
//! added or recovers.

use std::cell::Cell;
use std::time::Duration;

use crate::telemetry::balancer::QueueMetrics;

/// The fail-fast gate and queue of one destination.
#[derive(Debug)]
pub(crate) struct FailFastGate {
    shut: Cell<bool>,
    queued: Cell<usize>,
    capacity: usize,
    fail_fast_timeout: Duration,
    metrics: QueueMetrics,
}

/// The reason why a request gets no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// No endpoint became available within the fail-fast timeout.
    FailFast,
    /// The queue is full, or the gate is shut.
    LoadShed,
}

/// A request in the queue. Dropping it removes the request from the queue.
#[derive(Debug)]
pub(super) struct QueuedRequest<'a>(&'a FailFastGate);

impl FailFastGate {
    pub(crate) fn new(capacity: usize, fail_fast_timeout: Duration, metrics: QueueMetrics) -> Self {
        metrics.init(fail_fast_timeout);
        Self {
            metrics,
            shut: Cell::new(false),
            queued: Cell::new(0),
            capacity,
            fail_fast_timeout,
        }
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.shut.get()
    }

    pub(super) fn fail_fast_timeout(&self) -> Duration {
        self.fail_fast_timeout
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

    /// Counts a request for an endpoint.
    pub(super) fn count_request(&self) {
        self.metrics.requests.inc();
    }

    /// Records how long a request has waited for its endpoint.
    pub(super) fn record_wait(&self, wait: Duration) {
        self.metrics.latency.observe(wait.as_secs_f64());
    }

    pub(super) fn enqueue(&self) -> Result<QueuedRequest<'_>, QueueError> {
        if self.is_shut() || self.queued.get() >= self.capacity {
            return Err(QueueError::LoadShed);
        }
        self.queued.set(self.queued.get() + 1);
        self.metrics.length.inc();
        Ok(QueuedRequest(self))
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.queued.set(self.0.queued.get() - 1);
        self.0.metrics.length.dec();
    }
}
