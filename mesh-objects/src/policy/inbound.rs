//! The inbound policy of a workload's port. docs/reference/access-policy.md has its rules.
//!
//! ```text
//!   workload + port ──▶ the Server that selects it ──▶ protocol ──▶ routes (with authorizations)
//!                  │                              ├──▶ authorizations of the Server
//!                  │                              └──▶ rate limit
//!                  └─▶ no Server: the default policy
//! ```

use std::sync::Arc;
use std::time::Duration;

use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{
    Authorization, HttpServer, InboundRule, ProbeClients, RateLimit, ServerPolicy, ServerProtocol,
    default_grpc_route, default_http_route,
};
use mesh_core::route::filter::{Filter, Proxies, RequestKind};
use mesh_core::route::{Route, Rule};

use self::workload::Workload;
pub use self::workload::{Overlap, overlaps};
use crate::model::{
    self, Kind, Name, PodRecord, Protocol, RateLimitPolicy, RouteId, Server, WorkloadRef,
};
use crate::policy::attachment::{
    RouteParents, grpc_route_of_server, is_attached_to_server, requests_of_server,
};
use crate::policy::rate_limit::rate_limit_of_server;
use crate::policy::settings::PolicySettings;
use crate::store::Store;

mod authorizations;
mod workload;

/// How long proxies wait for the first bytes of a connection before they treat it as opaque, as in
/// Linkerd.
pub const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the policy of a port; `None` if the workload does not exist.
pub fn policy(
    store: &Store,
    settings: &PolicySettings,
    workload: &WorkloadRef,
    port: u16,
) -> Option<ServerPolicy> {
    let workload = Workload::find(store, workload)?;
    Some(policy_of(store, settings, workload, port))
}

/// Returns the policy of a port of a pod, which need not exist yet.
pub fn policy_of_pod(
    store: &Store,
    settings: &PolicySettings,
    pod: &PodRecord,
    port: u16,
) -> ServerPolicy {
    policy_of(store, settings, Workload::Pod(pod), port)
}

fn policy_of(
    store: &Store,
    settings: &PolicySettings,
    workload: Workload<'_>,
    port: u16,
) -> ServerPolicy {
    let policy = match workload.server(store, port) {
        Some(server) => server_policy(store, settings, workload, server),
        None => default_policy(settings, workload, port),
    };
    let Some((probes, node)) = workload.probes(store, &settings.node_probe_sources, port) else {
        return policy;
    };
    let clients = ProbeClients {
        networks: &settings.probe_networks,
        node: &node,
    };
    policy.admitting(probes, clients)
}

/// Returns the parents of the routes that may be attached to Servers of a namespace.
pub fn routes_in<'a>(
    store: &'a Store,
    namespace: &Arc<str>,
) -> impl Iterator<Item = RouteParents<'a>> {
    let http = store.http_routes_in(namespace).map(|route| route.parents());
    http.chain(store.grpc_routes_in(namespace).map(|route| route.parents()))
}

fn default_policy(settings: &PolicySettings, workload: Workload<'_>, port: u16) -> ServerPolicy {
    let policy = workload.default_policy(port, settings.default_policy);
    let opaque = workload.is_opaque(port);
    let mut server = policy.server_policy(&settings.cluster_networks, DETECT_TIMEOUT, opaque);
    server.is_terminating = workload.is_terminating();
    server
}

fn server_policy(
    store: &Store,
    settings: &PolicySettings,
    workload: Workload<'_>,
    server: &Server,
) -> ServerPolicy {
    let namespace = &server.name.namespace;
    let candidates: Vec<_> = routes_in(store, namespace).collect();
    let candidates = candidates.iter().copied();
    let grpc = grpc_route_of_server(server, candidates.clone());
    let http = || HttpServer {
        routes: attached_routes(
            store,
            settings,
            server,
            grpc,
            store.http_routes_in(namespace),
        )
        .unwrap_or_else(|| vec![default_http_route()]),
        rate_limit: rate_limit(store, settings, server),
    };
    ServerPolicy {
        meta: policy_resource("server", &server.name),
        protocol: match (server.protocol, requests_of_server(server, candidates)) {
            (Protocol::Detect, _) => ServerProtocol::Detect {
                timeout: DETECT_TIMEOUT,
                http: http(),
            },
            (Protocol::Http1, _) => ServerProtocol::Http1(http()),
            (Protocol::Http2, _) | (Protocol::Grpc, Some(RequestKind::Http)) => {
                ServerProtocol::Http2(http())
            }
            (Protocol::Grpc, _) => ServerProtocol::Grpc(
                attached_routes(
                    store,
                    settings,
                    server,
                    grpc,
                    store.grpc_routes_in(namespace),
                )
                .unwrap_or_else(|| vec![default_grpc_route()]),
            ),
            (Protocol::Opaque, _) => ServerProtocol::Opaque,
            (Protocol::Tls, _) => ServerProtocol::Tls,
        },
        authorizations: authorizations::of_server(store, settings, server).into(),
        is_terminating: workload.is_terminating(),
    }
}

fn rate_limit(store: &Store, settings: &PolicySettings, server: &Server) -> Option<RateLimit> {
    let policies = store.rate_limit_policies_in(&server.name.namespace);
    let RateLimitPolicy {
        name,
        total,
        identity,
        overrides,
        ..
    } = rate_limit_of_server(server, policies)?;
    let identities = |accounts: &[Name]| {
        let identities = accounts.iter();
        identities
            .filter_map(|account| authorizations::account(account, settings))
            .collect()
    };
    Some(RateLimit {
        meta: policy_resource(Kind::RateLimitPolicy.as_str(), name),
        total: *total,
        identity: *identity,
        overrides: overrides
            .iter()
            .map(|(accounts, rate)| (identities(accounts), *rate))
            .collect(),
    })
}

/// Returns the routes that are attached to the Server; `None` if there are none. They replace the
/// default routes. `grpc_route` is the result of [`grpc_route_of_server`].
fn attached_routes<'a, M: Clone + 'a>(
    store: &Store,
    settings: &PolicySettings,
    server: &Server,
    grpc_route: Option<&Name>,
    routes: impl Iterator<Item = &'a model::Route<M>>,
) -> Option<Vec<Route<M, InboundRule>>> {
    let mut routes: Vec<_> = routes
        .filter(|route| is_attached_to_server(route.parents(), server, grpc_route))
        .collect();
    routes.sort_by_key(|route| route.precedence());
    let routes: Vec<_> = routes
        .into_iter()
        .map(|route| convert(store, settings, route))
        .collect();
    (!routes.is_empty()).then_some(routes)
}

fn convert<M: Clone>(
    store: &Store,
    settings: &PolicySettings,
    route: &model::Route<M>,
) -> Route<M, InboundRule> {
    let authorizations: Arc<[Authorization]> =
        authorizations::of_route(store, settings, &route.id).into();
    let requests = match route.id.kind {
        Kind::GatewayGrpcRoute => RequestKind::Grpc,
        _ => RequestKind::Http,
    };
    Route {
        meta: route_meta(&route.id),
        hosts: route.hosts.clone(),
        rules: route
            .rules
            .iter()
            .map(|rule| Rule {
                matches: rule.matches.clone(),
                action: InboundRule {
                    filters: inbound_filters(rule, requests),
                    authorizations: authorizations.clone(),
                },
            })
            .collect(),
    }
}

/// Proxies do not change the response headers of their own pod, which convert/server_route.rs logs.
/// Requests of a rule with a filter that they cannot apply fail.
fn inbound_filters<M>(rule: &model::Rule<M>, requests: RequestKind) -> Vec<Filter> {
    if let Some(problem) = rule.problem_of_servers(requests) {
        return vec![Filter::InternalError(problem.into())];
    }
    let is_applied = |filter: &&Filter| filter.left_out(Proxies::OfServer).is_none();
    rule.filters.iter().filter(is_applied).cloned().collect()
}

/// Linkerd writes these kinds in lower case, also in metrics. The kind of rate limits is an
/// exception.
fn policy_resource(kind: &str, name: &Name) -> Meta {
    resource("policy.linkerd.io", kind, name)
}

pub(super) fn route_meta(id: &RouteId) -> Meta {
    resource(id.kind.group(), id.kind.as_str(), &id.name)
}

fn resource(group: &str, kind: &str, name: &Name) -> Meta {
    let Name { namespace, name } = name.clone();
    Meta::Resource(Resource::new(group, kind, namespace, name))
}
