//! Policies of destinations that cannot be parents of routes.

use std::net::SocketAddr;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, OutboundPolicy, OutboundProtocol, TcpRoute, TcpVerdict,
};

use super::service_meta;
use crate::model::Name;
use crate::policy::inbound::DETECT_TIMEOUT;

/// Forwards traffic that leaves the cluster to its original destination.
pub(super) fn fallback(addr: SocketAddr) -> OutboundPolicy {
    let meta = Meta::new_default("egress-fallback");
    OutboundPolicy::forwarding(&meta, forward(addr), DETECT_TIMEOUT)
}

/// Returns the target that forwards to one address.
pub(super) fn forward(addr: SocketAddr) -> BackendTarget {
    BackendTarget::Forward(Box::new(Endpoint {
        weight: 1,
        ..Endpoint::plain(addr)
    }))
}

/// Denies a port that the Service does not define.
pub(super) fn undefined_port(service: &Name, port: u16) -> OutboundPolicy {
    OutboundPolicy {
        parent: service_meta(service, port),
        protocol: OutboundProtocol::Opaque(Some(TcpRoute {
            meta: Meta::new_default("undefined-port"),
            backends: Distribution::Empty,
            verdict: TcpVerdict::Forbidden,
        })),
    }
}
