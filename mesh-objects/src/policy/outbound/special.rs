//! Policies of destinations that cannot be parents of routes.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::resilience::Timeouts;
use mesh_core::route::http::HttpMatch;
use mesh_core::route::{Route, Rule};

use super::service_meta;
use crate::model::Name;
use crate::policy::inbound::DETECT_TIMEOUT;

/// Forwards traffic that leaves the cluster to its original destination.
pub(super) fn fallback(addr: SocketAddr) -> OutboundPolicy {
    let meta = Meta::new_default("egress-fallback");
    let backend = || {
        Distribution::FirstAvailable(vec![Arc::new(RouteBackend {
            backend: Backend {
                meta: meta.clone(),
                target: forward(addr),
            },
            filters: Vec::new(),
            verdict: TcpVerdict::Forward,
        })])
    };
    let http = || HttpRoutes {
        routes: vec![Route {
            meta: meta.clone(),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: vec![HttpMatch::default()],
                action: OutboundRule {
                    filters: Vec::new(),
                    backends: backend(),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            }],
        }],
        failure_accrual: None,
    };
    OutboundPolicy {
        parent: meta.clone(),
        protocol: OutboundProtocol::Detect {
            timeout: DETECT_TIMEOUT,
            opaque: Some(TcpRoute {
                meta: meta.clone(),
                backends: backend(),
                verdict: TcpVerdict::Forward,
            }),
            http1: http(),
            http2: http(),
        },
    }
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
