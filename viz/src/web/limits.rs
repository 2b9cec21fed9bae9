//! The limits of open streams and taps, and the counters of the dashboard.

use std::sync::Arc;

use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::tap::MAX_TAPS;

/// The limits of open streams, and counters.
pub(crate) struct Limits {
    viewers: Arc<Semaphore>,
    taps: Arc<Semaphore>,
    /// Requests with another Host header.
    pub(crate) foreign_host: Counter,
    /// Requests of pages of other origins.
    pub(crate) foreign_origin: Counter,
    /// Events that viewers were too slow for.
    pub(crate) dropped: Counter,
}

/// The most open streams of updates. Each page has one.
pub(crate) const MAX_VIEWERS: usize = 256;

impl Limits {
    pub(crate) fn new(registry: &Registry) -> Self {
        let refused = registry.counter_family(
            "mesh_web_refused_requests_total",
            "Requests that were refused, by what protects from: host (DNS rebinding) or origin",
        );
        let refused = |reason| refused.with(&Labels::new().with("reason", reason));
        let limits = Self {
            viewers: Arc::new(Semaphore::new(MAX_VIEWERS)),
            taps: Arc::new(Semaphore::new(MAX_TAPS)),
            foreign_host: refused("host"),
            foreign_origin: refused("origin"),
            dropped: registry
                .counter_family(
                    "mesh_web_tap_events_dropped_total",
                    "Events of taps that were dropped because the viewer did not read them in time",
                )
                .with(&Labels::new()),
        };
        let (viewers, taps) = (limits.viewers.clone(), limits.taps.clone());
        registry.on_scrape(move |scrape| {
            let mut open = |name, help, max: usize, free: &Semaphore| {
                let open = max.saturating_sub(free.available_permits());
                scrape.gauge(name, help, &Labels::new(), open as f64);
            };
            open(
                "mesh_web_streams",
                "Open streams of updates",
                MAX_VIEWERS,
                &viewers,
            );
            open("mesh_web_taps", "Open taps", MAX_TAPS, &taps);
        });
        limits
    }

    /// Returns a permit for a stream of updates, if there is one.
    pub(crate) fn viewer(&self) -> Option<OwnedSemaphorePermit> {
        self.viewers.clone().try_acquire_owned().ok()
    }

    /// Returns a permit for a tap, if there is one.
    pub(crate) fn tap(&self) -> Option<OwnedSemaphorePermit> {
        self.taps.clone().try_acquire_owned().ok()
    }
}
