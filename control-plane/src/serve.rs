//! The gRPC services. Each parses the request, watches a value in the index, and sends it in the
//! messages of the API.
//!
//! All listen without TLS: in a cluster, the proxy of the pod terminates it.

mod authority;
mod calls;
mod destination;
mod grpc;
mod identity;
mod inbound;
mod metrics_api;
mod outbound;
mod stream_limit;
mod trust_anchors;
mod updates;
mod workload;

pub(crate) use self::metrics_api::{
    Measure, Measurement, Metric, Stats, latency_queries, parse_selector,
};
pub use self::{
    calls::Calls,
    destination::DestinationService,
    grpc::GrpcServer,
    identity::IdentityService,
    inbound::InboundService,
    metrics_api::{MetricsApiService, MetricsApiSettings},
    outbound::OutboundService,
    trust_anchors::TrustAnchorsService,
};
