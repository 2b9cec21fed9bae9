//! Observers of an outbound exchange's bodies: metrics, latency measurement, timeouts.

use std::rc::Rc;

use super::endpoint::HttpEndpoint;
use super::outcome;
use crate::balance::PickedEndpoint;
use crate::http::Body;
use crate::http::body::{BodyEnd, BodyObserver, ExchangeProgress};
use crate::telemetry::http::{Exchange, RequestBodyObserver};

/// Observes the request's body.
pub(super) struct RequestObserver {
    metrics: Option<RequestBodyObserver>,
    progress: Option<Rc<ExchangeProgress>>,
}

/// Observes the response's body.
pub(super) struct ResponseObserver {
    route: Exchange,
    attempt: Exchange,
    /// Counts as in flight on the endpoint until the response has ended.
    picked: Option<PickedEndpoint<HttpEndpoint>>,
}

impl RequestObserver {
    pub(super) fn new(
        metrics: Option<RequestBodyObserver>,
        progress: Option<Rc<ExchangeProgress>>,
    ) -> Self {
        Self { metrics, progress }
    }

    pub(super) fn attach(self, body: &mut Body) {
        if self.metrics.is_some() || self.progress.is_some() {
            body.observe(Box::new(self));
        }
    }
}

impl BodyObserver for RequestObserver {
    fn data(&mut self, bytes: usize) {
        if let Some(metrics) = &self.metrics {
            metrics.frame(bytes);
        }
        if let Some(progress) = &self.progress {
            progress.record_frame();
        }
    }

    fn end(&mut self, _end: BodyEnd<'_>) {
        if let Some(metrics) = &self.metrics {
            metrics.end();
        }
        if let Some(progress) = &self.progress {
            progress.record_request_end();
        }
    }
}

impl ResponseObserver {
    pub(super) fn new(
        route: Exchange,
        attempt: Exchange,
        picked: Option<PickedEndpoint<HttpEndpoint>>,
    ) -> Self {
        Self {
            route,
            attempt,
            picked,
        }
    }
}

impl BodyObserver for ResponseObserver {
    fn data(&mut self, bytes: usize) {
        if let Some(picked) = &self.picked {
            outcome::record_data(picked);
        }
        self.route.response_frame(bytes);
        self.attempt.response_frame(bytes);
    }

    fn end(&mut self, end: BodyEnd<'_>) {
        if let Some(picked) = self.picked.take() {
            outcome::record_end(&picked, end);
        }
        self.attempt.end(end);
        self.route.end(end);
    }
}
