//! Messages of the `OutboundPolicies` service.

use std::sync::Arc;

use mesh_core::policy::outbound::{
    HttpRoutes, OutboundPolicy, OutboundProtocol, OutboundRule, Routes, Target, TcpRoute,
};
use mesh_core::route::Route;
use wire::proxy_protocol::{self, Kind};
use wire::traffic_spec;

use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::outbound as wire;
use crate::{Extended, InvalidField, value};

mod accrual;
mod backend;
mod distribution;
mod extension;
mod grpc;
mod http;
mod rule;
mod tcp;

pub use self::extension::{
    MAX_EXTENDED_BACKENDS, MAX_EXTENDED_FILTERS, MAX_EXTENDED_RULES, MAX_EXTENSION_BYTES,
};

/// An outbound policy with the extension of this project.
pub type ExtendedPolicy = Extended<wire::OutboundPolicy>;

/// A received policy of a destination.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedPolicy {
    /// The policy.
    pub policy: OutboundPolicy,
    /// The fault in the extension. The affected rules and backends have the filters of their
    /// standard messages, which fail every request.
    pub problem: Option<InvalidField>,
}

/// Converts a received policy of a destination with its extension.
///
/// # Errors
///
/// A field outside of the extension is invalid.
pub fn extended_policy(message: ExtendedPolicy) -> Result<ReceivedPolicy, InvalidField> {
    let mut policy = outbound_policy(message.standard)?;
    let applied = extension::apply(&mut policy, &message.extension).inside("extension");
    Ok(ReceivedPolicy {
        policy,
        problem: applied.err(),
    })
}

/// Converts the policy of a destination to a message with the extension, if it needs one.
pub fn extended_to_proto(policy: &OutboundPolicy) -> ExtendedPolicy {
    ExtendedPolicy {
        standard: to_proto(policy),
        extension: extension::encode(&policy.protocol),
    }
}

/// Converts a received policy of a destination without its extension.
///
/// # Errors
///
/// A field is invalid.
pub fn outbound_policy(policy: wire::OutboundPolicy) -> Result<OutboundPolicy, InvalidField> {
    Ok(OutboundPolicy {
        parent: required("metadata", policy.metadata, meta)?,
        protocol: required("protocol", policy.protocol, protocol)?,
    })
}

/// Converts the policy of a destination to a message of the API. Rules and backends with filters
/// that need the extension fail their requests.
pub fn to_proto(policy: &OutboundPolicy) -> wire::OutboundPolicy {
    wire::OutboundPolicy {
        protocol: Some(protocol_to_proto(&policy.protocol)),
        metadata: Some(meta::to_proto(&policy.parent)),
    }
}

/// Returns the request for the policy of a destination.
pub fn traffic_spec(source_workload: &str, target: &Target) -> wire::TrafficSpec {
    let target = match target {
        Target::Addr(addr) => traffic_spec::Target::Addr((*addr).into()),
        Target::Authority(authority) => traffic_spec::Target::Authority(authority.to_string()),
    };
    wire::TrafficSpec {
        source_workload: source_workload.to_owned(),
        target: Some(target),
    }
}

/// Converts the destination of a received request.
///
/// # Errors
///
/// The destination is missing or invalid.
pub fn target(target: Option<traffic_spec::Target>) -> Result<Target, InvalidField> {
    match target {
        Some(traffic_spec::Target::Addr(addr)) => {
            value::socket_addr(addr).map(Target::Addr).inside("addr")
        }
        Some(traffic_spec::Target::Authority(authority)) => Ok(Target::Authority(authority.into())),
        None => Err(InvalidField::missing("target")),
    }
}

fn protocol(wire: wire::ProxyProtocol) -> Result<OutboundProtocol, InvalidField> {
    let kind = wire
        .kind
        .ok_or_else(|| InvalidField::unknown_kind("kind"))?;
    match kind {
        Kind::Detect(detect) => {
            let read = || {
                Ok(OutboundProtocol::Detect {
                    timeout: required("timeout", detect.timeout, value::duration)?,
                    opaque: required("opaque", detect.opaque, opaque)?,
                    http1: required("http1", detect.http1, http1)?,
                    http2: required("http2", detect.http2, http2)?,
                })
            };
            read().inside("detect")
        }
        Kind::Opaque(routes) => opaque(routes)
            .map(OutboundProtocol::Opaque)
            .inside("opaque"),
        Kind::Http1(routes) => http1(routes).map(OutboundProtocol::Http1).inside("http1"),
        Kind::Http2(routes) => http2(routes).map(OutboundProtocol::Http2).inside("http2"),
        Kind::Grpc(grpc) => routes(grpc.routes, grpc.failure_accrual, grpc::route)
            .map(OutboundProtocol::Grpc)
            .inside("grpc"),
        Kind::Tls(tls) => each("routes", tls.routes, tcp::tls_route)
            .map(OutboundProtocol::Tls)
            .inside("tls"),
    }
}

fn protocol_to_proto(protocol: &OutboundProtocol) -> wire::ProxyProtocol {
    let kind = match protocol {
        OutboundProtocol::Detect {
            timeout,
            opaque,
            http1,
            http2,
        } => Kind::Detect(proxy_protocol::Detect {
            timeout: Some(value::duration_to_proto(*timeout)),
            opaque: Some(opaque_to_proto(opaque.as_ref())),
            http1: Some(http1_to_proto(http1)),
            http2: Some(http2_to_proto(http2)),
        }),
        OutboundProtocol::Opaque(route) => Kind::Opaque(opaque_to_proto(route.as_ref())),
        OutboundProtocol::Http1(routes) => Kind::Http1(http1_to_proto(routes)),
        OutboundProtocol::Http2(routes) => Kind::Http2(http2_to_proto(routes)),
        OutboundProtocol::Grpc(routes) => Kind::Grpc(proxy_protocol::Grpc {
            routes: routes.routes.iter().map(grpc::route_to_proto).collect(),
            failure_accrual: routes.failure_accrual.map(accrual::to_proto),
        }),
        OutboundProtocol::Tls(routes) => Kind::Tls(proxy_protocol::Tls {
            routes: routes.iter().map(tcp::tls_route_to_proto).collect(),
        }),
    };
    wire::ProxyProtocol { kind: Some(kind) }
}

/// At most one opaque route is valid; several may be sent by a newer version of the API.
fn opaque(wire: proxy_protocol::Opaque) -> Result<Option<TcpRoute>, InvalidField> {
    match wire.routes.len() {
        0 | 1 => Ok(each("routes", wire.routes, tcp::opaque_route)?.pop()),
        count => Err(InvalidField::not_a(
            "list of at most one route",
            "routes",
            count,
        )),
    }
}

/// Proxies require exactly one route; a route without backends stands for none.
fn opaque_to_proto(route: Option<&TcpRoute>) -> proxy_protocol::Opaque {
    let route = match route {
        Some(route) => tcp::opaque_route_to_proto(route),
        None => tcp::opaque_route_to_proto(&tcp::nowhere()),
    };
    proxy_protocol::Opaque {
        routes: vec![route],
    }
}

fn http1(wire: proxy_protocol::Http1) -> Result<HttpRoutes, InvalidField> {
    routes(wire.routes, wire.failure_accrual, http::route)
}

fn http2(wire: proxy_protocol::Http2) -> Result<HttpRoutes, InvalidField> {
    routes(wire.routes, wire.failure_accrual, http::route)
}

type RouteResult<M, T> = Result<Route<M, OutboundRule<T>>, InvalidField>;

fn routes<W, M, T>(
    routes: Vec<W>,
    failure_accrual: Option<wire::FailureAccrual>,
    route: fn(W) -> RouteResult<M, T>,
) -> Result<Routes<M, T>, InvalidField> {
    Ok(Routes {
        routes: each("routes", routes, route)?,
        failure_accrual: optional("failure_accrual", failure_accrual, accrual::accrual)?,
    })
}

fn http1_to_proto(routes: &HttpRoutes) -> proxy_protocol::Http1 {
    proxy_protocol::Http1 {
        routes: routes.routes.iter().map(http::route_to_proto).collect(),
        failure_accrual: routes.failure_accrual.map(accrual::to_proto),
    }
}

fn http2_to_proto(routes: &HttpRoutes) -> proxy_protocol::Http2 {
    proxy_protocol::Http2 {
        routes: routes.routes.iter().map(http::route_to_proto).collect(),
        failure_accrual: routes.failure_accrual.map(accrual::to_proto),
    }
}

/// Routes that refer to the same backend share it.
type SharedBackend = Arc<mesh_core::policy::outbound::RouteBackend>;

#[cfg(test)]
mod tests;
