//! The gRPC services. Each parses the request, watches a value in the index, and sends it in the
//! messages of the API.
//!
//! All listen without TLS: in a cluster, the proxy of the pod terminates it.

mod authority;
mod destination;
mod grpc;
mod identity;
mod inbound;
mod outbound;
mod trust_anchors;
mod updates;
mod workload;

pub use self::{
    destination::DestinationService, grpc::GrpcServer, identity::IdentityService,
    inbound::InboundService, outbound::OutboundService, trust_anchors::TrustAnchorsService,
};
