//! A destination to balance over, as the request path asks for it: [`Service::acquire`] returns an
//! endpoint, after waiting for one if it must.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::resilience::{Backoff, PeakEwma};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::{Balancer, Gate, Picked, Refusal};
use crate::discovery::EndpointSet;
use crate::telemetry::balancer::Balancer as Metrics;

/// Settings of the balancers of one direction and kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How many requests may wait for an endpoint.
    pub queue_capacity: usize,
    /// How long they wait.
    pub failfast: Duration,
    /// Pauses between attempts to reach an endpoint that could not be connected to.
    pub backoff: Backoff,
}

/// The endpoints behind one authority, kept up to date.
pub struct Service<T> {
    /// Newest set of endpoints. Looked at before each pick, which costs one atomic load when
    /// nothing has changed.
    sets: RefCell<watch::Receiver<Arc<EndpointSet>>>,
    balancer: Balancer<T>,
    gate: Gate,
    /// Wakes the waiting when an endpoint works again, or when all must fail.
    stirred: Notify,
}

impl<T> Service<T> {
    pub fn new(
        mut sets: watch::Receiver<Arc<EndpointSet>>,
        ewma: PeakEwma,
        settings: &Settings,
        metrics: Metrics,
        make: impl Fn(&Arc<Endpoint>) -> T + 'static,
    ) -> Self {
        sets.mark_changed();
        Self {
            sets: RefCell::new(sets),
            gate: Gate::new(
                settings.queue_capacity,
                settings.failfast,
                metrics.queue.clone(),
            ),
            balancer: Balancer::new(ewma, settings.backoff, metrics, rand::random(), make),
            stirred: Notify::new(),
        }
    }

    /// Whether it makes sense to send a request here: it is not known that nothing answers.
    pub fn is_available(&self) -> bool {
        self.refresh();
        !self.gate.is_shut() || self.has_available()
    }

    /// Whether an endpoint could be picked now.
    pub fn has_available(&self) -> bool {
        self.balancer.has_available(Instant::now())
    }

    /// An endpoint to use, now or as soon as there is one. The time limit counts from `began`, when
    /// the request first asked: one that is sent from one dead endpoint to the next does not do so
    /// for ever.
    pub async fn acquire(&self, began: Instant) -> Result<Picked<T>, Refusal> {
        self.acquire_other(began, None).await
    }

    /// As [`Service::acquire`], for a request that `avoid` has just failed: another endpoint,
    /// unless that is the only one.
    pub async fn acquire_other(
        &self,
        began: Instant,
        avoid: Option<SocketAddr>,
    ) -> Result<Picked<T>, Refusal> {
        self.refresh();
        let now = Instant::now();
        let deadline = began + self.gate.patience();
        if now > deadline {
            return Err(Refusal::FailFast);
        }
        self.gate.asked();
        match self.balancer.pick(now, avoid) {
            Some(picked) => {
                self.gate.waited(Duration::ZERO);
                Ok(picked)
            }
            None => {
                let picked = Box::pin(self.wait(deadline)).await?;
                self.gate.waited(now.elapsed());
                Ok(picked)
            }
        }
    }

    async fn wait(&self, deadline: Instant) -> Result<Picked<T>, Refusal> {
        let _waiting = self.gate.wait()?;
        let mut sets = self.sets.borrow().clone();
        loop {
            let now = Instant::now();
            self.refresh();
            if let Some(picked) = self.balancer.pick(now, None) {
                return Ok(picked);
            }
            if self.gate.is_shut() || now >= deadline {
                self.gate.shut();
                self.stirred.notify_waiters();
                return Err(Refusal::FailFast);
            }
            let retry = self.balancer.next_available().unwrap_or(deadline);
            tokio::select! {
                Ok(()) = sets.changed() => {}
                () = self.stirred.notified() => {}
                () = tokio::time::sleep_until(retry.min(deadline)) => {}
            }
        }
    }

    /// The endpoint could not be reached; the caller asks for another.
    pub fn failed(&self, picked: &Picked<T>) {
        self.balancer.mark_failed(picked, Instant::now());
    }

    /// The endpoint has answered.
    pub fn reached(&self, picked: &Picked<T>) {
        if self.balancer.mark_reached(picked) {
            self.gate.open();
            self.stirred.notify_waiters();
        }
    }

    /// Takes over the newest set of endpoints.
    fn refresh(&self) {
        let mut sets = self.sets.borrow_mut();
        if !sets.has_changed().unwrap_or(false) {
            return;
        }
        let set = sets.borrow_and_update().clone();
        drop(sets);
        if self.balancer.update(&set.endpoints) {
            // Nobody knows yet whether it works, but it deserves the usual patience.
            self.gate.open();
        }
    }
}
