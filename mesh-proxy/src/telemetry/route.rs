//! The newer HTTP families: `inbound_http_*`, `outbound_http_route_*`,
//! `outbound_http_route_backend_*` and their gRPC variants.

use std::cell::RefCell;
use std::time::Duration;

use mesh_runtime::metrics::{
    Counter, CounterFamily, Exemplar, Exemplars, Histogram, HistogramFamily, Labels, Registry,
};

use super::status::{GrpcStatus, HandleCache, Outcome};

/// One group of these families, for HTTP and for gRPC. Families that Linkerd does not export for
/// the group are absent.
#[derive(Clone, Debug)]
pub(crate) struct RouteFamilies {
    http: ProtocolFamilies,
    grpc: ProtocolFamilies,
}

#[derive(Clone, Debug)]
struct ProtocolFamilies {
    requests: Option<CounterFamily>,
    /// From the request's headers to the end of the response.
    request_duration: Option<HistogramFamily>,
    /// From the end of the request to the end of the response.
    response_duration: Option<HistogramFamily>,
    request_frames: Option<HistogramFamily>,
    response_frames: Option<HistogramFamily>,
    statuses: CounterFamily,
    status_labels: StatusLabels,
}

/// The labels of the families of statuses, which differ as in Linkerd.
#[derive(Clone, Copy, Debug)]
enum StatusLabels {
    /// `status`, the number.
    InboundHttp,
    /// `status`, the number of the code; empty if the response has none.
    InboundGrpc,
    /// `http_status`, the number, and `error`.
    OutboundHttp,
    /// `grpc_status`, the name of the code, and `error`. A response without a code, which need not
    /// be gRPC, is UNKNOWN.
    OutboundGrpc,
}

/// The handles of one route or backend, on one data thread.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    families: ProtocolFamilies,
    labels: Labels,
    requests: Option<Counter>,
    request_duration: Option<Histogram>,
    response_duration: Option<Histogram>,
    pub(super) request_frames: Option<Histogram>,
    response_frames: Option<Histogram>,
    statuses: RefCell<HandleCache<Outcome, Counter>>,
}

const SECONDS: &[f64] = &[0.05, 0.5, 1.0, 10.0];
const FINE_SECONDS: &[f64] = &[0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 10.0];
const FRAME_BYTES: &[f64] = &[0.0, 128.0, 1024.0, 10_240.0, 102_400.0];

const REQUEST_SECONDS: &str = "The time from a request's head to the end of its response";
const RESPONSE_SECONDS: &str = "The time from the end of a request to the end of its response";
const REQUEST_FRAMES: &str = "Sizes of the frames of request bodies";
const RESPONSE_FRAMES: &str = "Sizes of the frames of response bodies";

impl RouteFamilies {
    pub(super) fn inbound(registry: &Registry, exemplars: Exemplars) -> Self {
        let times = |name, help, buckets| {
            Some(registry.histogram_family_with(name, help, buckets, exemplars))
        };
        let sizes = |name, help| Some(registry.histogram_family(name, help, FRAME_BYTES));
        let families = |names: [&'static str; 6], status_labels| ProtocolFamilies {
            requests: Some(registry.counter_family(
                names[0],
                "The number of requests that the application received",
            )),
            request_duration: times(names[1], REQUEST_SECONDS, FINE_SECONDS),
            response_duration: times(names[2], RESPONSE_SECONDS, SECONDS),
            request_frames: sizes(names[3], REQUEST_FRAMES),
            response_frames: sizes(names[4], RESPONSE_FRAMES),
            statuses: registry.counter_family(names[5], "Responses by status"),
            status_labels,
        };
        let http = [
            "inbound_http_requests_total",
            "inbound_http_request_duration_seconds",
            "inbound_http_response_duration_seconds",
            "inbound_http_request_frame_size_bytes",
            "inbound_http_response_frame_size_bytes",
            "inbound_http_statuses_total",
        ];
        let grpc = [
            "inbound_grpc_requests_total",
            "inbound_grpc_request_duration_seconds",
            "inbound_grpc_response_duration_seconds",
            "inbound_grpc_request_frame_size_bytes",
            "inbound_grpc_response_frame_size_bytes",
            "inbound_grpc_statuses_total",
        ];
        Self {
            http: families(http, StatusLabels::InboundHttp),
            grpc: families(grpc, StatusLabels::InboundGrpc),
        }
    }

    pub(super) fn outbound_route(registry: &Registry, exemplars: Exemplars) -> Self {
        let families = |[duration, frames, statuses]: [&'static str; 3], status_labels| {
            let duration =
                registry.histogram_family_with(duration, REQUEST_SECONDS, SECONDS, exemplars);
            let frames = registry.histogram_family(frames, REQUEST_FRAMES, FRAME_BYTES);
            ProtocolFamilies {
                requests: None,
                request_duration: Some(duration),
                response_duration: None,
                request_frames: Some(frames),
                response_frames: None,
                statuses: registry.counter_family(statuses, "Responses to applications, by status"),
                status_labels,
            }
        };
        let http = [
            "outbound_http_route_request_duration_seconds",
            "outbound_http_route_request_frame_size_bytes",
            "outbound_http_route_request_statuses_total",
        ];
        let grpc = [
            "outbound_grpc_route_request_duration_seconds",
            "outbound_grpc_route_request_frame_size_bytes",
            "outbound_grpc_route_request_statuses_total",
        ];
        Self {
            http: families(http, StatusLabels::OutboundHttp),
            grpc: families(grpc, StatusLabels::OutboundGrpc),
        }
    }

    pub(super) fn outbound_backend(registry: &Registry, exemplars: Exemplars) -> Self {
        let families = |[requests, duration, frames, statuses]: [&'static str; 4],
                        status_labels| {
            let duration =
                registry.histogram_family_with(duration, RESPONSE_SECONDS, FINE_SECONDS, exemplars);
            let frames = registry.histogram_family(frames, RESPONSE_FRAMES, FRAME_BYTES);
            let help = "The number of requests sent to a backend";
            ProtocolFamilies {
                requests: Some(registry.counter_family(requests, help)),
                request_duration: None,
                response_duration: Some(duration),
                request_frames: None,
                response_frames: Some(frames),
                statuses: registry.counter_family(statuses, "Responses of a backend, by status"),
                status_labels,
            }
        };
        let http = [
            "outbound_http_route_backend_requests_total",
            "outbound_http_route_backend_response_duration_seconds",
            "outbound_http_route_backend_response_frame_size_bytes",
            "outbound_http_route_backend_response_statuses_total",
        ];
        let grpc = [
            "outbound_grpc_route_backend_requests_total",
            "outbound_grpc_route_backend_response_duration_seconds",
            "outbound_grpc_route_backend_response_frame_size_bytes",
            "outbound_grpc_route_backend_response_statuses_total",
        ];
        Self {
            http: families(http, StatusLabels::OutboundHttp),
            grpc: families(grpc, StatusLabels::OutboundGrpc),
        }
    }

    /// Resolves the handles of an HTTP route or backend.
    pub(crate) fn http(&self, labels: Labels) -> RouteMetrics {
        self.http.resolve(labels)
    }

    /// Resolves the handles of a gRPC route or backend.
    pub(crate) fn grpc(&self, labels: Labels) -> RouteMetrics {
        self.grpc.resolve(labels)
    }
}

impl ProtocolFamilies {
    fn resolve(&self, labels: Labels) -> RouteMetrics {
        let histogram = |family: &Option<HistogramFamily>| family.as_ref().map(|f| f.with(&labels));
        RouteMetrics {
            requests: self.requests.as_ref().map(|family| family.with(&labels)),
            request_duration: histogram(&self.request_duration),
            response_duration: histogram(&self.response_duration),
            request_frames: histogram(&self.request_frames),
            response_frames: histogram(&self.response_frames),
            statuses: RefCell::new(HandleCache::new()),
            families: self.clone(),
            labels,
        }
    }
}

impl StatusLabels {
    fn add_to(self, labels: Labels, outcome: &Outcome) -> Labels {
        let number = || match outcome.status() {
            Some(status) => status.as_str().to_owned(),
            None => String::new(),
        };
        let grpc = outcome.grpc();
        match self {
            Self::InboundHttp => labels.with("status", number()),
            Self::InboundGrpc => match grpc {
                Some(GrpcStatus::Code(code)) => labels.with("status", code.to_string()),
                Some(GrpcStatus::Missing) | None => labels.with("status", ""),
            },
            Self::OutboundHttp => labels
                .with("http_status", number())
                .with("error", outcome.error()),
            Self::OutboundGrpc => labels
                .with("grpc_status", grpc.unwrap_or(GrpcStatus::Missing).name())
                .with("error", outcome.error()),
        }
    }
}

impl RouteMetrics {
    pub(super) fn request(&self) {
        if let Some(requests) = &self.requests {
            requests.inc();
        }
    }

    pub(super) fn response_frame(&self, bytes: usize) {
        if let Some(frames) = &self.response_frames {
            frames.observe(bytes as f64);
        }
    }

    /// `since_request_end` is `None` if the request's body did not end.
    pub(super) fn end(
        &self,
        outcome: Outcome,
        since_start: Duration,
        since_request_end: Option<Duration>,
        exemplar: Option<&Exemplar>,
    ) {
        if let Some(duration) = &self.request_duration {
            duration.observe_with(since_start.as_secs_f64(), exemplar);
        }
        if let (Some(duration), Some(took)) = (&self.response_duration, since_request_end) {
            duration.observe_with(took.as_secs_f64(), exemplar);
        }
        self.statuses
            .borrow_mut()
            .find_or(outcome, |outcome| {
                let labels = self.labels.clone();
                let labels = self.families.status_labels.add_to(labels, outcome);
                self.families.statuses.with(&labels)
            })
            .inc();
    }
}

#[cfg(test)]
mod tests;
