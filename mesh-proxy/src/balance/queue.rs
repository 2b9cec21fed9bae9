//! The balancer of one destination with its queue: [`BalanceQueue::acquire`] returns an endpoint,
//! and waits if none is available.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use mesh_core::endpoint::Endpoint;
use mesh_core::resilience::{Backoff, PeakEwma};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Balancer, CircuitBreaking, FailFastGate, PickedEndpoint, QueueError};
use crate::discovery::EndpointSet;
use crate::telemetry::balancer::BalancerMetrics;
use crate::{random, watch};

/// The settings of a [`BalanceQueue`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BalanceSettings {
    /// Maximum number of requests that wait for an endpoint.
    pub(crate) queue_capacity: usize,
    /// Fail-fast timeout: how long requests wait for an endpoint.
    pub(crate) failfast: Duration,
    /// Pauses between attempts to reach a failed endpoint.
    pub(crate) backoff: Backoff,
}

/// The endpoints of one authority and the requests that wait for one of them.
pub(crate) struct BalanceQueue<T> {
    /// Endpoint sets from discovery. Polled before each pick, which costs one atomic load when
    /// nothing has changed.
    sets: RefCell<watch::Receiver<Arc<EndpointSet>>>,
    balancer: Balancer<T>,
    gate: FailFastGate,
    /// Wakes the queued requests when an endpoint has recovered or the gate has shut.
    wake: Notify,
}

impl<T> BalanceQueue<T> {
    pub(crate) fn new(
        mut sets: watch::Receiver<Arc<EndpointSet>>,
        ewma: PeakEwma,
        settings: &BalanceSettings,
        circuit: Option<CircuitBreaking>,
        metrics: BalancerMetrics,
        make: impl Fn(&Arc<Endpoint>) -> T + 'static,
    ) -> Self {
        sets.mark_changed();
        Self {
            sets: RefCell::new(sets),
            gate: FailFastGate::new(
                settings.queue_capacity,
                settings.failfast,
                metrics.queue.clone(),
            ),
            balancer: Balancer::new(
                ewma,
                settings.backoff,
                circuit,
                metrics,
                random::random(),
                make,
            ),
            wake: Notify::new(),
        }
    }

    /// Whether requests should be sent here: false while the gate is shut and no endpoint is
    /// available.
    pub(crate) fn is_available(&self) -> bool {
        self.refresh();
        !self.gate.is_shut() || self.has_available()
    }

    /// Whether an endpoint is available now.
    pub(super) fn has_available(&self) -> bool {
        self.balancer.has_available(Instant::now())
    }

    /// Whether a request that is sent here would try an endpoint, although none is available.
    pub(crate) fn is_trial_due(&self) -> bool {
        self.balancer.is_trial_due(Instant::now())
    }

    /// Whether an endpoint besides `picked` is available now.
    pub(crate) fn has_other(&self, picked: &PickedEndpoint<T>) -> bool {
        self.balancer
            .has_other(picked.endpoint.addr, Instant::now())
    }

    /// Returns an endpoint as soon as one is available. The fail-fast timeout counts from
    /// `started`, when the request first asked for an endpoint, and so bounds its retries on other
    /// endpoints.
    pub(crate) async fn acquire(&self, started: Instant) -> Result<PickedEndpoint<T>, QueueError> {
        self.acquire_other(started, None).await
    }

    /// As [`BalanceQueue::acquire`], for a request that has failed on the endpoint `avoid`: returns
    /// another one unless `avoid` is the only one available.
    pub(crate) async fn acquire_other(
        &self,
        started: Instant,
        avoid: Option<SocketAddr>,
    ) -> Result<PickedEndpoint<T>, QueueError> {
        self.refresh();
        let now = Instant::now();
        let deadline = started + self.gate.fail_fast_timeout();
        if now > deadline {
            return Err(QueueError::FailFast);
        }
        self.gate.count_request();
        match self.pick(now, avoid) {
            Some(picked) => {
                self.gate.record_wait(Duration::ZERO);
                Ok(picked)
            }
            None => {
                let picked = Box::pin(self.wait(deadline)).await?;
                self.gate.record_wait(now.elapsed());
                Ok(picked)
            }
        }
    }

    /// Picks an available endpoint. One that works ends fail-fast.
    fn pick(&self, now: Instant, avoid: Option<SocketAddr>) -> Option<PickedEndpoint<T>> {
        let picked = self.balancer.pick(now, avoid)?;
        if self.gate.is_shut() && picked.is_settled() {
            self.gate.open();
        }
        Some(picked)
    }

    async fn wait(&self, deadline: Instant) -> Result<PickedEndpoint<T>, QueueError> {
        let _queued = self.gate.enqueue()?;
        let mut sets = self.sets.borrow().clone();
        loop {
            let now = Instant::now();
            self.refresh();
            // Created before the pick, so that no change in another thread is missed.
            let breaker_change = OptionFuture::from(self.balancer.breaker_change());
            if let Some(picked) = self.pick(now, None) {
                return Ok(picked);
            }
            if self.gate.is_shut() || now >= deadline {
                self.gate.shut();
                self.wake.notify_waiters();
                return Err(QueueError::FailFast);
            }
            let retry = self.balancer.next_available(now).unwrap_or(deadline);
            tokio::select! {
                biased;
                Ok(()) = sets.changed() => {}
                () = self.wake.notified() => {}
                Some(()) = breaker_change => {}
                () = tokio::time::sleep_until(retry.min(deadline)) => {}
            }
        }
    }

    /// Records that the endpoint could not be reached.
    pub(crate) fn mark_failed(&self, picked: &PickedEndpoint<T>) {
        self.balancer.mark_failed(picked, Instant::now());
    }

    /// Records that the endpoint was reached.
    pub(crate) fn mark_reached(&self, picked: &PickedEndpoint<T>) {
        if self.balancer.mark_reached(picked) {
            self.gate.open();
            self.wake.notify_waiters();
        }
    }

    /// Applies the current set of endpoints to the balancer.
    fn refresh(&self) {
        let mut sets = self.sets.borrow_mut();
        if !sets.has_changed().unwrap_or(false) {
            return;
        }
        let set = sets.borrow_and_update().clone();
        drop(sets);
        if self.balancer.update(&set.endpoints) {
            // Requests wait for the new endpoint, which may be reachable.
            self.gate.open();
        }
    }
}
