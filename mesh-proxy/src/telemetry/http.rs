//! The metrics of HTTP exchanges: [`Exchange`], and the older families per endpoint
//! (`request_total`, `response_total`, `response_latency_ms`). Used by both directions on the data
//! threads.
//!
//! The latency ends with the first frame of the response's body, and is observed then. The time to
//! the end of the response is observed besides with [`ResponseDurations::Observed`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use mesh_core::profile::ResponseClass;
use mesh_core::tap::TapStreamEnd;
use mesh_core::trace::SpanContext;
use mesh_runtime::metrics::{
    Counter, CounterFamily, Exemplar, Exemplars, Histogram, HistogramFamily, LATENCY_MS, Labels,
    Registry,
};
use tokio::time::Instant;

use super::route::RouteMetrics;
use super::status::HandleCache;
pub(crate) use super::status::{
    GrpcStatus, Outcome, StreamError, grpc_is_failure, grpc_status, is_grpc,
};
use crate::tap::TapRecorder;

/// `request_total`, `response_total`, `response_latency_ms`.
#[derive(Clone, Debug)]
pub(crate) struct EndpointFamilies {
    requests: CounterFamily,
    responses: CounterFamily,
    /// From the request's headers to the first frame of the response's body.
    latency: Option<HistogramFamily>,
    /// From the request's headers to the end of the response.
    duration: Option<HistogramFamily>,
}

/// Whether the time to the end of each response is observed by endpoint and by route of a
/// ServiceProfile, besides the latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseDurations {
    Observed,
    Off,
}

/// The handles of one endpoint (outbound), of one route permit (inbound), or of one route of a
/// ServiceProfile, on one data thread.
#[derive(Debug)]
pub(crate) struct EndpointMetrics {
    families: EndpointFamilies,
    labels: Labels,
    /// Which responses are failures, before the default applies.
    classes: Vec<ResponseClass>,
    requests: Counter,
    /// By outcome, and whether it is a failure.
    responses: RefCell<HandleCache<(Outcome, bool), Counter>>,
    latencies: RefCell<HandleCache<StatusCode, Histogram>>,
    durations: RefCell<HandleCache<Option<StatusCode>, Histogram>>,
}

/// The handles that record one exchange.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExchangeMetrics {
    pub(crate) endpoint: Option<Rc<EndpointMetrics>>,
    /// The metrics of a ServiceProfile's route.
    pub(crate) profile: Option<Rc<EndpointMetrics>>,
    pub(crate) route: Option<Rc<RouteMetrics>>,
    pub(crate) backend: Option<Rc<RouteMetrics>>,
}

/// One request and its response. Owned by the response's body; if it is dropped before the end, it
/// is counted by [`Exchange::dropped`].
#[derive(Debug)]
pub(crate) struct Exchange {
    observers: ExchangeMetrics,
    started: Instant,
    request_ended: RequestEnd,
    grpc: bool,
    status: Option<StatusCode>,
    grpc_status: Option<u16>,
    /// The response's body has not begun, and its latency is to be observed.
    awaits_body: bool,
    finished: bool,
    /// Reports the exchange to observers. Boxed, because few exchanges have it.
    tap: Option<Box<TapRecorder>>,
    /// The span of a sampled request, which the latencies refer to.
    span: Option<SpanContext>,
}

/// Observes a request's body, and records when it ends.
#[derive(Debug)]
pub(crate) struct RequestBodyObserver {
    ended: Rc<Cell<Option<Instant>>>,
    route: Option<Rc<RouteMetrics>>,
}

#[derive(Debug)]
enum RequestEnd {
    /// The request had no body.
    AtStart,
    Observed(Rc<Cell<Option<Instant>>>),
}

impl ResponseDurations {
    /// Whether they are observed, as `MESH_PROXY_RESPONSE_DURATIONS` says.
    pub(crate) fn new(observed: bool) -> Self {
        if observed { Self::Observed } else { Self::Off }
    }
}

impl EndpointFamilies {
    pub(super) fn new(
        registry: &Registry,
        exemplars: Exemplars,
        durations: ResponseDurations,
    ) -> Self {
        Self::named(registry, "request_total", "response_total")
            .with_latency(registry, "response_latency_ms", exemplars)
            .with_duration(registry, "response_duration_ms", exemplars, durations)
    }

    /// The families of the proxy's calls to the control plane.
    pub(super) fn control(registry: &Registry) -> Self {
        Self::named(registry, "control_request_total", "control_response_total").with_latency(
            registry,
            "control_response_latency_ms",
            Exemplars::Off,
        )
    }

    pub(super) fn named(
        registry: &Registry,
        requests: &'static str,
        responses: &'static str,
    ) -> Self {
        Self {
            requests: registry.counter_family(requests, "Total count of HTTP requests"),
            responses: registry.counter_family(responses, "Total count of HTTP responses"),
            latency: None,
            duration: None,
        }
    }

    pub(super) fn with_latency(
        self,
        registry: &Registry,
        name: &'static str,
        exemplars: Exemplars,
    ) -> Self {
        let help = "Elapsed times between a request's headers being received and the first frame of its response's body, or its end if there is none";
        let family = registry.histogram_family_with(name, help, LATENCY_MS, exemplars);
        Self {
            latency: Some(family),
            ..self
        }
    }

    pub(super) fn with_duration(
        self,
        registry: &Registry,
        name: &'static str,
        exemplars: Exemplars,
        durations: ResponseDurations,
    ) -> Self {
        let help = "Elapsed times between a request's headers being received and its response stream completing";
        let family = || registry.histogram_family_with(name, help, LATENCY_MS, exemplars);
        Self {
            duration: (durations == ResponseDurations::Observed).then(family),
            ..self
        }
    }

    pub(super) fn requests(&self, labels: &Labels) -> Counter {
        self.requests.with(labels)
    }

    /// Observes the latency of a response without cached handles.
    pub(super) fn latency(&self, labels: &Labels, status: StatusCode, took: Duration) {
        if let Some(latency) = &self.latency {
            latency
                .with(&status_labels(labels, Some(status)))
                .observe(millis(took));
        }
    }

    /// Counts the end of an exchange without cached handles.
    pub(super) fn end(&self, labels: &Labels, outcome: Outcome) {
        self.responses
            .with(&response_labels(labels, &outcome, outcome.is_failure()))
            .inc();
    }

    pub(crate) fn endpoint(&self, labels: Labels) -> EndpointMetrics {
        self.classified(labels, &[])
    }

    /// Resolves handles that count responses as failures by `classes`.
    pub(super) fn classified(&self, labels: Labels, classes: &[ResponseClass]) -> EndpointMetrics {
        EndpointMetrics {
            classes: classes.to_vec(),
            requests: self.requests.with(&labels),
            responses: RefCell::new(HandleCache::new()),
            latencies: RefCell::new(HandleCache::new()),
            durations: RefCell::new(HandleCache::new()),
            families: self.clone(),
            labels,
        }
    }
}

impl EndpointMetrics {
    fn latency(&self, status: StatusCode, took: Duration, exemplar: Option<&Exemplar>) {
        if let Some(latency) = &self.families.latency {
            self.latencies
                .borrow_mut()
                .find_or(status, |status| {
                    latency.with(&status_labels(&self.labels, Some(*status)))
                })
                .observe_with(millis(took), exemplar);
        }
    }

    fn end(&self, outcome: Outcome, is_failure: bool, took: Duration, exemplar: Option<&Exemplar>) {
        self.responses
            .borrow_mut()
            .find_or((outcome, is_failure), |(outcome, is_failure)| {
                let labels = response_labels(&self.labels, outcome, *is_failure);
                self.families.responses.with(&labels)
            })
            .inc();
        if let Some(duration) = &self.families.duration {
            self.durations
                .borrow_mut()
                .find_or(outcome.status(), |status| {
                    duration.with(&status_labels(&self.labels, *status))
                })
                .observe_with(millis(took), exemplar);
        }
    }

    fn is_failure(&self, outcome: &Outcome) -> bool {
        let class = match outcome {
            Outcome::Response { status, .. } => ResponseClass::classify(&self.classes, *status),
            Outcome::Failed { .. } => None,
        };
        class.unwrap_or_else(|| outcome.is_failure())
    }
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1_000.0
}

fn status_labels(labels: &Labels, status: Option<StatusCode>) -> Labels {
    match status {
        Some(status) => labels.clone().with("status_code", status.as_str()),
        None => labels.clone(),
    }
}

/// Returns the labels of a response. As in Linkerd, `grpc_status` and `error` are always present,
/// and `status_code` is absent for a failed stream.
fn response_labels(labels: &Labels, outcome: &Outcome, is_failure: bool) -> Labels {
    let class = if is_failure { "failure" } else { "success" };
    let (status, grpc, error) = match outcome {
        Outcome::Response { status, grpc } => (
            Some(*status),
            grpc.map_or(String::new(), |grpc| grpc.code().to_string()),
            "",
        ),
        Outcome::Failed { .. } => (None, String::new(), "unclassified"),
    };
    status_labels(labels, status)
        .with("classification", class)
        .with("grpc_status", grpc)
        .with("error", error)
}

impl Exchange {
    /// Counts a request that is being sent. With `has_body`, the caller must observe the body with
    /// [`Exchange::request_body`].
    pub(crate) fn start(observers: ExchangeMetrics, request: &HeaderMap, has_body: bool) -> Self {
        for endpoint in [&observers.endpoint, &observers.profile]
            .into_iter()
            .flatten()
        {
            endpoint.requests.inc();
        }
        for route in [&observers.route, &observers.backend].into_iter().flatten() {
            route.request();
        }
        Self {
            observers,
            started: Instant::now(),
            request_ended: if has_body {
                RequestEnd::Observed(Rc::default())
            } else {
                RequestEnd::AtStart
            },
            grpc: is_grpc(request),
            status: None,
            grpc_status: None,
            awaits_body: false,
            finished: false,
            tap: None,
            span: None,
        }
    }

    /// Reports the exchange to observers too.
    #[must_use]
    pub(crate) fn with_tap(mut self, tap: Option<Box<TapRecorder>>) -> Self {
        self.tap = tap;
        self
    }

    /// Refers to the span of the request.
    #[must_use]
    pub(crate) fn with_span(mut self, span: Option<SpanContext>) -> Self {
        self.span = span;
        self
    }

    /// Returns the observer of the request's body, or `None` if it has none.
    pub(crate) fn request_body(&self) -> Option<RequestBodyObserver> {
        match &self.request_ended {
            RequestEnd::AtStart => None,
            RequestEnd::Observed(ended) => Some(RequestBodyObserver {
                ended: ended.clone(),
                route: self.observers.route.clone(),
            }),
        }
    }

    pub(crate) fn response_headers(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        self.grpc_status = grpc_status(headers);
        self.awaits_body = self.observers.endpoint.is_some() || self.observers.profile.is_some();
        if let Some(tap) = &mut self.tap {
            tap.response_headers(status, headers);
        }
    }

    pub(crate) fn response_frame(&mut self, bytes: usize) {
        if self.awaits_body {
            self.observe_latency(self.started.elapsed(), self.span.map(exemplar).as_ref());
        }
        for route in [&self.observers.route, &self.observers.backend]
            .into_iter()
            .flatten()
        {
            route.response_frame(bytes);
        }
        if let Some(tap) = &self.tap {
            tap.response_data(bytes);
        }
    }

    /// Counts a complete response.
    pub(crate) fn response_end(&mut self, trailers: Option<&HeaderMap>) {
        let Some(status) = self.status else {
            return self.failed(StreamError::Unknown);
        };
        let grpc = self.grpc.then(|| {
            trailers
                .and_then(grpc_status)
                .or(self.grpc_status)
                .map_or(GrpcStatus::Missing, GrpcStatus::Code)
        });
        if let Some(tap) = &mut self.tap {
            let end = grpc.map_or(TapStreamEnd::Complete, |grpc| {
                TapStreamEnd::GrpcStatus(grpc.code())
            });
            tap.end(end, trailers);
        }
        self.finish(Outcome::Response { status, grpc });
    }

    /// Counts a response that the proxy has synthesized, which has the status `grpc` if the request
    /// is a gRPC call.
    pub(crate) fn synthesized(&mut self, status: StatusCode, grpc: u16) {
        let grpc = self.grpc.then_some(GrpcStatus::Code(grpc));
        self.finish(Outcome::Response { status, grpc });
    }

    /// Counts a missing or incomplete response.
    pub(crate) fn failed(&mut self, error: StreamError) {
        if let Some(tap) = &mut self.tap {
            tap.end(TapStreamEnd::Reset(error.reset_code()), None);
        }
        self.finish(Outcome::Failed {
            status: self.status,
            error,
        });
    }

    /// Counts an exchange that the client has cancelled. The route families count it as cancelled.
    /// The endpoint families classify the received part of the response, as Linkerd's do, so that a
    /// stream cancelled by its client is not a failure of the server; without a response they count
    /// none.
    pub(crate) fn dropped(&mut self) {
        let cancelled = Outcome::Failed {
            status: self.status,
            error: StreamError::Cancel,
        };
        let partial = self.status.map(|status| Outcome::Response {
            status,
            grpc: self.grpc.then(|| {
                self.grpc_status
                    .map_or(GrpcStatus::Missing, GrpcStatus::Code)
            }),
        });
        self.finish_as(partial, cancelled);
    }

    /// Observes the latency of the response when its body begins, or when it ends without one.
    fn observe_latency(&mut self, took: Duration, exemplar: Option<&Exemplar>) {
        self.awaits_body = false;
        let Some(status) = self.status else { return };
        let ExchangeMetrics {
            endpoint, profile, ..
        } = &self.observers;
        for metrics in [endpoint, profile].into_iter().flatten() {
            metrics.latency(status, took, exemplar);
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        self.finish_as(Some(outcome), outcome);
    }

    /// `endpoint_outcome` is counted by the endpoint families, `outcome` by the route families.
    fn finish_as(&mut self, endpoint_outcome: Option<Outcome>, outcome: Outcome) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let took = self.started.elapsed();
        let since_request_end = match &self.request_ended {
            RequestEnd::AtStart => Some(took),
            RequestEnd::Observed(ended) => ended.get().map(|at| at.elapsed()),
        };
        let exemplar = self.span.map(exemplar);
        let exemplar = exemplar.as_ref();
        if self.awaits_body {
            self.observe_latency(took, exemplar);
        }
        if let Some(outcome) = endpoint_outcome {
            let ExchangeMetrics {
                endpoint, profile, ..
            } = &self.observers;
            // The classes of a ServiceProfile's route apply to both, as in Linkerd.
            let classes = profile.as_ref().or(endpoint.as_ref());
            let is_failure = classes.is_some_and(|metrics| metrics.is_failure(&outcome));
            for metrics in [endpoint, profile].into_iter().flatten() {
                metrics.end(outcome, is_failure, took, exemplar);
            }
        }
        for route in [&self.observers.route, &self.observers.backend]
            .into_iter()
            .flatten()
        {
            route.end(outcome, took, since_request_end, exemplar);
        }
    }
}

/// Returns the exemplar of an exchange for an observation that is made now.
fn exemplar(span: SpanContext) -> Exemplar {
    Exemplar {
        trace_id: u128::from_be_bytes(*span.trace_id.as_bytes()),
        span_id: u64::from_be_bytes(*span.span_id.as_bytes()),
        at: SystemTime::now(),
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.dropped();
    }
}

impl RequestBodyObserver {
    pub(crate) fn frame(&self, bytes: usize) {
        if let Some(frames) = self
            .route
            .as_ref()
            .and_then(|route| route.request_frames.as_ref())
        {
            frames.observe(bytes as f64);
        }
    }

    pub(crate) fn end(&self) {
        self.ended.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests;
