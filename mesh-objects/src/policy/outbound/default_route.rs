//! The routes of traffic that no attached route matches.

use http::StatusCode;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Distribution, GrpcRoute, HttpRoute, OutboundRule, TcpRoute, TcpVerdict, TlsRoute,
};
use mesh_core::resilience::Retry;
use mesh_core::route::filter::{Filter, Ratio};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{HttpMatch, PathMatch};
use mesh_core::route::{Route, Rule};
use mesh_k8s::traffic_annotations::Retries;

use super::backend::BackendBuilder;
use super::parent::{ParentObject, RouteParent};
use super::routes::{self, Overrides};
use crate::model::{EgressNetwork, TrafficPolicy};

/// The message of requests that an EgressNetwork denies, as in Linkerd.
const DENIED: &str = "traffic not allowed";
/// gRPC's PERMISSION_DENIED.
const GRPC_PERMISSION_DENIED: u16 = 7;

/// Returns the HTTP route of a Service without attached routes.
pub(super) fn service_http(parent: &RouteParent<'_>) -> HttpRoute {
    http(parent, Meta::new_default("http"), Vec::new())
}

pub(super) fn egress_http(parent: &RouteParent<'_>, network: &EgressNetwork) -> HttpRoute {
    let denied = Filter::InjectHttpFailure {
        status: StatusCode::FORBIDDEN,
        message: DENIED.into(),
        ratio: Ratio::ALL,
    };
    http(
        parent,
        egress_meta("http", network),
        filters(network, denied),
    )
}

pub(super) fn egress_grpc(parent: &RouteParent<'_>, network: &EgressNetwork) -> GrpcRoute {
    let denied = Filter::InjectGrpcFailure {
        code: GRPC_PERMISSION_DENIED,
        message: DENIED.into(),
        ratio: Ratio::ALL,
    };
    Route {
        meta: egress_meta("grpc", network),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![GrpcMatch::default()],
            action: rule(
                parent,
                BackendBuilder::for_grpc(parent).distribution(None),
                filters(network, denied),
                |retries| retries.grpc.clone(),
            ),
        }],
    }
}

pub(super) fn egress_tls(parent: &RouteParent<'_>, network: &EgressNetwork) -> TlsRoute {
    TlsRoute {
        meta: egress_meta("tls", network),
        snis: Vec::new(),
        backends: BackendBuilder::for_connections(parent).distribution(None),
        verdict: verdict(network),
    }
}

/// Returns the route of connections that are not HTTP.
pub(super) fn tcp(parent: &RouteParent<'_>) -> TcpRoute {
    let (meta, verdict) = match parent.object {
        ParentObject::Service { .. } => (Meta::new_default("opaq"), TcpVerdict::Forward),
        ParentObject::EgressNetwork { network, .. } => {
            (egress_meta("tcp", network), verdict(network))
        }
    };
    TcpRoute {
        meta,
        backends: BackendBuilder::for_connections(parent).distribution(None),
        verdict,
    }
}

fn http(parent: &RouteParent<'_>, meta: Meta, filters: Vec<Filter>) -> HttpRoute {
    Route {
        meta,
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix("/".to_owned())),
                ..HttpMatch::default()
            }],
            action: rule(
                parent,
                BackendBuilder::for_http(parent).distribution(None),
                filters,
                |retries| retries.http.clone(),
            ),
        }],
    }
}

/// Default rules have the parent's settings. Headers of requests do not override these.
fn rule<C>(
    parent: &RouteParent<'_>,
    backends: Distribution,
    filters: Vec<Filter>,
    conditions: impl Fn(&Retries) -> C,
) -> OutboundRule<Retry<C>> {
    let (timeouts, retry) = routes::settings(parent, Overrides::default(), conditions);
    OutboundRule {
        filters,
        backends,
        timeouts,
        retry,
        allow_request_headers: false,
    }
}

fn egress_meta(protocol: &str, network: &EgressNetwork) -> Meta {
    let policy = match network.policy {
        TrafficPolicy::Allow => "allow",
        TrafficPolicy::Deny => "deny",
    };
    Meta::new_default(&format!("{protocol}-egress-{policy}"))
}

fn filters(network: &EgressNetwork, denied: Filter) -> Vec<Filter> {
    match network.policy {
        TrafficPolicy::Allow => Vec::new(),
        TrafficPolicy::Deny => vec![denied],
    }
}

fn verdict(network: &EgressNetwork) -> TcpVerdict {
    match network.policy {
        TrafficPolicy::Allow => TcpVerdict::Forward,
        TrafficPolicy::Deny => TcpVerdict::Forbidden,
    }
}
