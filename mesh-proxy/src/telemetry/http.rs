//! The life of one request as the metrics see it: [`Exchange`], and the older families per endpoint
//! (`request_total`, `response_total`, `response_latency_ms`). Used by both directions on the data
//! threads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use mesh_runtime::metrics::{
    Counter, CounterFamily, Histogram, HistogramFamily, LATENCY_MS, Labels, Registry,
};
use tokio::time::Instant;

use super::route::RouteHttp;
use super::status::Seen;
pub use super::status::{GrpcStatus, Outcome, StreamError, grpc_is_failure, grpc_status, is_grpc};

/// `request_total`, `response_total`, `response_latency_ms`.
#[derive(Clone, Debug)]
pub struct EndpointFamilies {
    requests: CounterFamily,
    responses: CounterFamily,
    latency: HistogramFamily,
}

/// The handles of one endpoint (outbound) or of one policy verdict (inbound), on one data thread.
#[derive(Debug)]
pub struct EndpointHttp {
    families: EndpointFamilies,
    labels: Labels,
    requests: Counter,
    responses: RefCell<Seen<Outcome, Counter>>,
    latencies: RefCell<Seen<Option<StatusCode>, Histogram>>,
}

/// Who is told of one exchange.
#[derive(Clone, Debug, Default)]
pub struct Observers {
    pub endpoint: Option<Rc<EndpointHttp>>,
    pub route: Option<Rc<RouteHttp>>,
    pub backend: Option<Rc<RouteHttp>>,
}

/// One request and its response. Goes with the response's body; dropped before the end, it counts
/// as [`Exchange::dropped`] says.
#[derive(Debug)]
pub struct Exchange {
    observers: Observers,
    started: Instant,
    request_ended: RequestEnd,
    grpc: bool,
    status: Option<StatusCode>,
    grpc_status: Option<u16>,
    finished: bool,
}

/// Goes with a request's body and tells the exchange when it ends.
#[derive(Debug)]
pub struct RequestBodyObserver {
    ended: Rc<Cell<Option<Instant>>>,
    route: Option<Rc<RouteHttp>>,
}

#[derive(Debug)]
enum RequestEnd {
    /// The request had no body.
    AtStart,
    Observed(Rc<Cell<Option<Instant>>>),
}

impl EndpointFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self::named(
            registry,
            "request_total",
            "response_total",
            "response_latency_ms",
        )
    }

    /// Of the proxy's own calls to the control plane.
    pub(super) fn control(registry: &Registry) -> Self {
        Self::named(
            registry,
            "control_request_total",
            "control_response_total",
            "control_response_latency_ms",
        )
    }

    fn named(
        registry: &Registry,
        requests: &'static str,
        responses: &'static str,
        latency: &'static str,
    ) -> Self {
        Self {
            requests: registry.counter_family(requests, "Total count of HTTP requests"),
            responses: registry.counter_family(responses, "Total count of HTTP responses"),
            latency: registry.histogram_family(
                latency,
                "Elapsed times between a request's headers being received and its response stream completing",
                LATENCY_MS,
            ),
        }
    }

    pub(super) fn requests(&self, labels: &Labels) -> Counter {
        self.requests.with(labels)
    }

    /// Counts an end whose handles are not kept.
    pub(super) fn end(&self, labels: &Labels, outcome: Outcome, took: Duration) {
        self.responses
            .with(&response_labels(labels, &outcome))
            .inc();
        self.latency
            .with(&status_labels(labels, outcome.status()))
            .observe(millis(took));
    }

    pub fn endpoint(&self, labels: Labels) -> EndpointHttp {
        EndpointHttp {
            requests: self.requests.with(&labels),
            responses: RefCell::new(Seen::new()),
            latencies: RefCell::new(Seen::new()),
            families: self.clone(),
            labels,
        }
    }
}

impl EndpointHttp {
    fn end(&self, outcome: Outcome, took: Duration) {
        self.responses
            .borrow_mut()
            .find_or(outcome, |outcome| {
                let labels = response_labels(&self.labels, outcome);
                self.families.responses.with(&labels)
            })
            .inc();
        self.latencies
            .borrow_mut()
            .find_or(outcome.status(), |status| {
                let labels = status_labels(&self.labels, *status);
                self.families.latency.with(&labels)
            })
            .observe(millis(took));
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

/// Linkerd always prints `grpc_status` and `error`, and no `status_code` where a stream broke.
fn response_labels(labels: &Labels, outcome: &Outcome) -> Labels {
    let class = if outcome.is_failure() {
        "failure"
    } else {
        "success"
    };
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
    /// Counts a request that is being sent. `has_body` says that [`Exchange::request_body`] will be
    /// asked for.
    pub fn start(observers: Observers, request: &HeaderMap, has_body: bool) -> Self {
        if let Some(endpoint) = &observers.endpoint {
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
        }
    }

    /// What goes with the request's body; `None` when it has none.
    pub fn request_body(&self) -> Option<RequestBodyObserver> {
        match &self.request_ended {
            RequestEnd::AtStart => None,
            RequestEnd::Observed(ended) => Some(RequestBodyObserver {
                ended: ended.clone(),
                route: self.observers.route.clone(),
            }),
        }
    }

    pub fn response_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        self.grpc_status = grpc_status(headers);
    }

    pub fn response_frame(&mut self, bytes: usize) {
        for route in [&self.observers.route, &self.observers.backend]
            .into_iter()
            .flatten()
        {
            route.response_frame(bytes);
        }
    }

    /// The response's body came to its end.
    pub fn response_end(&mut self, trailers: Option<&HeaderMap>) {
        let Some(status) = self.status else {
            return self.failed(StreamError::Unknown);
        };
        let grpc = self.grpc.then(|| {
            trailers
                .and_then(grpc_status)
                .or(self.grpc_status)
                .map_or(GrpcStatus::Missing, GrpcStatus::Code)
        });
        self.finish(Outcome::Response { status, grpc });
    }

    /// There will be no response, or no more of it.
    pub fn failed(&mut self, error: StreamError) {
        self.finish(Outcome::Failed {
            status: self.status,
            error,
        });
    }

    /// The client went away. The families of routes count it as cancelled. The older ones, as
    /// Linkerd's, judge a response by what was seen of it, so that a stream that its client no
    /// longer wants is not a failure of the server, and count no response where there was none.
    pub fn dropped(&mut self) {
        let cancelled = Outcome::Failed {
            status: self.status,
            error: StreamError::Cancel,
        };
        let seen = self.status.map(|status| Outcome::Response {
            status,
            grpc: self.grpc.then(|| {
                self.grpc_status
                    .map_or(GrpcStatus::Missing, GrpcStatus::Code)
            }),
        });
        self.finish_as(seen, cancelled);
    }

    fn finish(&mut self, outcome: Outcome) {
        self.finish_as(Some(outcome), outcome);
    }

    /// `of_endpoint` is what the older families count.
    fn finish_as(&mut self, of_endpoint: Option<Outcome>, outcome: Outcome) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let took = self.started.elapsed();
        let since_request_end = match &self.request_ended {
            RequestEnd::AtStart => Some(took),
            RequestEnd::Observed(ended) => ended.get().map(|at| at.elapsed()),
        };
        if let (Some(endpoint), Some(outcome)) = (&self.observers.endpoint, of_endpoint) {
            endpoint.end(outcome, took);
        }
        for route in [&self.observers.route, &self.observers.backend]
            .into_iter()
            .flatten()
        {
            route.end(outcome, took, since_request_end);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.dropped();
    }
}

impl RequestBodyObserver {
    pub fn frame(&self, bytes: usize) {
        if let Some(frames) = self
            .route
            .as_ref()
            .and_then(|route| route.request_frames.as_ref())
        {
            frames.observe(bytes as f64);
        }
    }

    pub fn end(&self) {
        self.ended.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is counted of an exchange that its client leaves, after the head of a response or
    /// before.
    fn left(head: Option<(StatusCode, &[(&'static str, &'static str)])>) -> String {
        let registry = Registry::new();
        let endpoint = EndpointFamilies::new(&registry).endpoint(Labels::new());
        let observers = Observers {
            endpoint: Some(Rc::new(endpoint)),
            ..Observers::default()
        };
        let request = [("content-type", "application/grpc")];
        let mut exchange = Exchange::start(observers.clone(), &headers(&request), false);
        if let Some((status, fields)) = head {
            exchange.response_head(status, &headers(fields));
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

    /// A watch ends when its client has seen enough.
    #[test]
    fn a_stream_that_its_client_ends_is_no_failure() {
        let counted = left(Some((StatusCode::OK, &[])));
        assert!(counted.contains(r#"classification="success""#), "{counted}");
        assert!(counted.contains(r#"status_code="200""#), "{counted}");
        assert!(counted.contains(r#"grpc_status="2""#), "{counted}");
        assert!(counted.ends_with(" 1"), "{counted}");
    }

    #[test]
    fn a_failure_stays_one_when_the_client_leaves() {
        let counted = left(Some((StatusCode::OK, &[("grpc-status", "14")])));
        assert!(counted.contains(r#"classification="failure""#), "{counted}");
    }

    #[test]
    fn no_response_is_not_counted() {
        assert_eq!(left(None), "");
    }
}
