//! What goes with the bodies of an exchange: metrics, latency measurement, time limits.

use std::rc::Rc;

use super::endpoint::Endpoint;
use crate::balance::Picked;
use crate::http::Body;
use crate::http::body::{End, Observe, Progress};
use crate::telemetry::http::{Exchange, RequestBodyObserver};

/// Goes with the request's body.
pub(super) struct RequestObserver {
    metrics: Option<RequestBodyObserver>,
    progress: Option<Rc<Progress>>,
}

/// Goes with the response's body.
pub(super) struct ResponseObserver {
    route: Exchange,
    attempt: Exchange,
    /// The endpoint counts as busy until the response has ended.
    picked: Option<Picked<Endpoint>>,
}

impl RequestObserver {
    pub(super) fn new(
        metrics: Option<RequestBodyObserver>,
        progress: Option<Rc<Progress>>,
    ) -> Self {
        Self { metrics, progress }
    }

    pub(super) fn attach(self, body: &mut Body) {
        if self.metrics.is_some() || self.progress.is_some() {
            body.observe(Box::new(self));
        }
    }
}

impl Observe for RequestObserver {
    fn data(&mut self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.frame(bytes);
        }
        if let Some(progress) = &self.progress {
            progress.frame();
        }
    }

    fn end(&mut self, _end: End<'_>) {
        if let Some(metrics) = &self.metrics {
            metrics.end();
        }
        if let Some(progress) = &self.progress {
            progress.request_ended();
        }
    }
}

impl ResponseObserver {
    pub(super) fn new(
        route: Exchange,
        attempt: Exchange,
        picked: Option<Picked<Endpoint>>,
    ) -> Self {
        Self {
            route,
            attempt,
            picked,
        }
    }

    /// The latency of an endpoint is the time to its first byte of body, or to the end of a
    /// response without one.
    fn measure(&mut self) {
        if let Some(picked) = &mut self.picked {
            picked.measure();
        }
    }
}

impl Observe for ResponseObserver {
    fn data(&mut self, bytes: usize) {
        self.measure();
        self.route.response_frame(bytes);
        self.attempt.response_frame(bytes);
    }

    fn end(&mut self, end: End<'_>) {
        if matches!(end, End::Complete(_)) {
            self.measure();
        }
        self.attempt.end(end);
        self.route.end(end);
        self.picked = None;
    }
}
