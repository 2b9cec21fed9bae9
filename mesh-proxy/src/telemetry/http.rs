//! The metrics of HTTP exchanges: [`Exchange`], and the older families per endpoint
//! (`request_total`, `response_total`, `response_latency_ms`). Used by both directions on the data
//! threads.

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
    latency: Option<HistogramFamily>,
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
    responses: RefCell<HandleCache<Outcome, Counter>>,
    latencies: RefCell<HandleCache<Option<StatusCode>, Histogram>>,
}

/// The handles that record one exchange.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExchangeMetrics {
    pub(crate) endpoint: Option<Rc<EndpointMetrics>>,
    /// Those of a ServiceProfile's route.
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

impl EndpointFamilies {
    pub(super) fn new(registry: &Registry, exemplars: Exemplars) -> Self {
        Self::named(
            registry,
            "request_total",
            "response_total",
            Some("response_latency_ms"),
            exemplars,
        )
    }

    /// The families of the proxy's calls to the control plane.
    pub(super) fn control(registry: &Registry) -> Self {
        Self::named(
            registry,
            "control_request_total",
            "control_response_total",
            Some("control_response_latency_ms"),
            Exemplars::Off,
        )
    }

    pub(super) fn named(
        registry: &Registry,
        requests: &'static str,
        responses: &'static str,
        latency: Option<&'static str>,
        exemplars: Exemplars,
    ) -> Self {
        let help = "Elapsed times between a request's headers being received and its response stream completing";
        let latency =
            latency.map(|name| registry.histogram_family_with(name, help, LATENCY_MS, exemplars));
        Self {
            latency,
            requests: registry.counter_family(requests, "Total count of HTTP requests"),
            responses: registry.counter_family(responses, "Total count of HTTP responses"),
        }
    }

    pub(super) fn requests(&self, labels: &Labels) -> Counter {
        self.requests.with(labels)
    }

    /// Counts the end of an exchange without cached handles.
    pub(super) fn end(&self, labels: &Labels, outcome: Outcome, took: Duration) {
        self.responses
            .with(&response_labels(labels, &outcome, outcome.is_failure()))
            .inc();
        if let Some(latency) = &self.latency {
            latency
                .with(&status_labels(labels, outcome.status()))
                .observe(millis(took));
        }
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
            families: self.clone(),
            labels,
        }
    }
}

impl EndpointMetrics {
    fn end(&self, outcome: Outcome, took: Duration, exemplar: Option<&Exemplar>) {
        self.responses
            .borrow_mut()
            .find_or(outcome, |outcome| {
                let labels = response_labels(&self.labels, outcome, self.is_failure(outcome));
                self.families.responses.with(&labels)
            })
            .inc();
        if let Some(latency) = &self.families.latency {
            self.latencies
                .borrow_mut()
                .find_or(outcome.status(), |status| {
                    latency.with(&status_labels(&self.labels, *status))
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
        if let Some(tap) = &mut self.tap {
            tap.response_headers(status, headers);
        }
    }

    pub(crate) fn response_frame(&self, bytes: usize) {
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
        if let Some(outcome) = endpoint_outcome {
            let ExchangeMetrics {
                endpoint, profile, ..
            } = &self.observers;
            for metrics in [endpoint, profile].into_iter().flatten() {
                metrics.end(outcome, took, exemplar);
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

/// Returns the exemplar of an exchange that ends now.
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
mod tests {
    use super::*;

    /// The `response_total` series of an exchange that is dropped before or after the response
    /// headers.
    fn dropped(head: Option<(StatusCode, &[(&'static str, &'static str)])>) -> String {
        let registry = Registry::new();
        let endpoint = EndpointFamilies::new(&registry, Exemplars::Off).endpoint(Labels::new());
        let observers = ExchangeMetrics {
            endpoint: Some(Rc::new(endpoint)),
            ..ExchangeMetrics::default()
        };
        let request = [("content-type", "application/grpc")];
        let mut exchange = Exchange::start(observers.clone(), &headers(&request), false);
        if let Some((status, fields)) = head {
            exchange.response_headers(status, &headers(fields));
        }
        drop(exchange);
        let text = String::from_utf8(registry.encode()).unwrap();
        drop(observers);
        let counted = text
            .lines()
            .filter(|line| line.starts_with("response_total{"));
        counted.collect::<Vec<_>>().join("\n")
    }

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )
        });
        fields.collect()
    }

    #[test]
    fn stream_cancelled_by_client_counts_as_success() {
        let counted = dropped(Some((StatusCode::OK, &[])));
        assert!(counted.contains(r#"classification="success""#), "{counted}");
        assert!(counted.contains(r#"status_code="200""#), "{counted}");
        assert!(counted.contains(r#"grpc_status="2""#), "{counted}");
        assert!(counted.ends_with(" 1"), "{counted}");
    }

    #[test]
    fn failed_status_counts_as_failure_when_client_cancels() {
        let counted = dropped(Some((StatusCode::OK, &[("grpc-status", "14")])));
        assert!(counted.contains(r#"classification="failure""#), "{counted}");
    }

    #[test]
    fn cancelled_request_without_response_is_not_counted() {
        assert_eq!(dropped(None), "");
    }
}
