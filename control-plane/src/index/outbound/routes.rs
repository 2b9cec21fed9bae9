//! The routes attached to a port of a Service.

use std::time::Duration;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{GrpcRoute, HttpRoute, OutboundRule};
use mesh_core::resilience::{Backoff, Retry, Timeouts};
use mesh_core::route::http::{HttpMatch, PathMatch};
use mesh_core::route::{Route, Rule};

use super::RouteParent;
use super::backend::BackendBuilder;
use crate::index::inbound::{age_order, route_meta};
use crate::index::store;
use crate::model::{self, ParentKind, ParentRef, Retries, Service};

/// Requests up to this size are buffered for retries, as in Linkerd.
const MAX_RETRY_BYTES: usize = 64 * 1024;
/// The backoff between retries, as in Linkerd.
const RETRY_BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(25),
    max: Duration::from_millis(250),
    jitter: 1.0,
};

/// Returns the HTTP routes accepted for the parent, oldest first. gRPC routes with the same parent
/// reference take precedence.
pub(super) fn http<'a>(parent: &RouteParent<'a>) -> Vec<&'a model::HttpRoute> {
    let grpc = grpc(parent);
    let conflicts = |reference: &ParentRef| {
        grpc.iter().flat_map(|route| &route.parents).any(|other| {
            other.kind == reference.kind
                && other.name == reference.name
                && other.port == reference.port
        })
    };
    let routes = namespaces(parent).flat_map(|namespace| parent.store.http_routes_in(namespace));
    accepted(parent, routes, |reference| !conflicts(reference))
}

/// Returns the gRPC routes accepted for the parent, oldest first.
pub(super) fn grpc<'a>(parent: &RouteParent<'a>) -> Vec<&'a model::GrpcRoute> {
    let routes = namespaces(parent).flat_map(|namespace| parent.store.grpc_routes_in(namespace));
    accepted(parent, routes, |_| true)
}

/// Routes of the Service's namespace apply to every client, those of the client's namespace only to
/// that client.
fn namespaces<'a>(
    parent: &RouteParent<'a>,
) -> impl Iterator<Item = &'a std::sync::Arc<str>> + use<'a> {
    let own = &parent.name.namespace;
    let client = parent.client_namespace;
    std::iter::once(own).chain((client != own).then_some(client))
}

fn accepted<'a, M>(
    parent: &RouteParent<'_>,
    routes: impl Iterator<Item = &'a model::Route<M>>,
    accepts: impl Fn(&ParentRef) -> bool,
) -> Vec<&'a model::Route<M>> {
    if !parent.service.is_some_and(accepts_routes) {
        return Vec::new();
    }
    let attached = |reference: &ParentRef| {
        reference.kind == ParentKind::Service
            && reference.name == *parent.name
            && reference.port.is_none_or(|port| port == parent.port)
            && accepts(reference)
    };
    let mut routes: Vec<_> = routes
        .filter(|route| route.parents.iter().any(attached))
        .collect();
    routes.sort_by_key(|route| (age_order(route.created), store::route_order(&route.id)));
    routes
}

/// A Service without a cluster IP has no traffic that a route could apply to.
fn accepts_routes(service: &Service) -> bool {
    !service.external_name && !service.cluster_ips.is_empty()
}

/// Returns the route of a parent without attached routes.
pub(super) fn default_http(parent: &RouteParent<'_>) -> HttpRoute {
    let traffic = parent.service.map(|service| &service.traffic);
    Route {
        meta: Meta::new_default("http"),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix("/".to_owned())),
                ..HttpMatch::default()
            }],
            action: OutboundRule {
                filters: Vec::new(),
                backends: BackendBuilder::for_http(parent).distribution(None),
                timeouts: traffic.map(|traffic| traffic.timeouts).unwrap_or_default(),
                retry: traffic
                    .and_then(|traffic| traffic.retries.as_ref())
                    .map(|retries| retry(retries, retries.http.clone())),
                allow_request_headers: false,
            },
        }],
    }
}

pub(super) fn convert_http(parent: &RouteParent<'_>, route: &model::HttpRoute) -> HttpRoute {
    let conditions = |retries: &Retries| retries.http.clone();
    convert(parent, route, &BackendBuilder::for_http(parent), conditions)
}

pub(super) fn convert_grpc(parent: &RouteParent<'_>, route: &model::GrpcRoute) -> GrpcRoute {
    let conditions = |retries: &Retries| retries.grpc.clone();
    convert(parent, route, &BackendBuilder::for_grpc(parent), conditions)
}

fn convert<M: Clone, C>(
    parent: &RouteParent<'_>,
    route: &model::Route<M>,
    backends: &BackendBuilder<'_>,
    conditions: impl Fn(&Retries) -> C,
) -> Route<M, OutboundRule<Retry<C>>> {
    let traffic = parent.service.map(|service| &service.traffic);
    // The retry settings of a route replace all of its parent's.
    let retries = route
        .retries
        .as_ref()
        .or_else(|| traffic.and_then(|traffic| traffic.retries.as_ref()));
    Route {
        meta: route_meta(&route.id),
        hosts: route.hosts.clone(),
        rules: route
            .rules
            .iter()
            .map(|rule| Rule {
                matches: rule.matches.clone(),
                action: OutboundRule {
                    filters: rule.filters.clone(),
                    backends: backends.distribution(rule.backends.as_ref()),
                    timeouts: timeouts(
                        traffic.map(|traffic| traffic.timeouts).unwrap_or_default(),
                        route.timeouts,
                        rule.request_timeout,
                    ),
                    retry: retries.map(|retries| retry(retries, conditions(retries))),
                    allow_request_headers: parent.settings.allow_request_headers,
                },
            })
            .collect(),
    }
}

/// A route's timeout annotations replace all of the parent's. The timeout of a rule applies unless
/// the route has an annotation with a request timeout.
fn timeouts(parent: Timeouts, route: Option<Timeouts>, rule: Option<Duration>) -> Timeouts {
    let mut timeouts = route.unwrap_or(parent);
    let annotated = route.and_then(|route| route.request);
    if annotated.is_none() && rule.is_some() {
        timeouts.request = rule;
    }
    timeouts
}

fn retry<C>(retries: &Retries, conditions: C) -> Retry<C> {
    Retry {
        max_retries: retries.limit,
        max_request_bytes: MAX_RETRY_BYTES,
        conditions,
        timeout: retries.timeout,
        backoff: Some(RETRY_BACKOFF),
    }
}
