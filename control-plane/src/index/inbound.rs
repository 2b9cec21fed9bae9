//! The inbound policy of a pod's port.
//!
//! ```text
//!   pod + port ──▶ the Server that selects it ──▶ protocol ──▶ routes (with their authorizations)
//!             │                              └──▶ authorizations: policies for the Server or its
//!             │                                   namespace, and its accessPolicy
//!             └─▶ no Server: the default policy
//! ```

use std::sync::Arc;
use std::time::Duration;

use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpRoute, HttpServer, InboundRule, Network, PROBE_ROUTE,
    ServerPolicy, ServerProtocol, all_networks, default_grpc_route, default_http_route,
};
use mesh_core::route::http::{HttpMatch, PathMatch};
use mesh_core::route::{Route, Rule};

use super::settings::PolicySettings;
use super::store::{self, Store};
use crate::model::{
    self, AuthenticationRef, AuthorizationPolicy, AuthorizationTarget, Kind, Name, ParentKind,
    PodRecord, Protocol, RouteId, Server,
};

/// How long proxies wait for the first bytes of a connection before they treat it as opaque, as in
/// Linkerd.
pub(super) const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the policy of a port; `None` if the pod does not exist.
pub(super) fn policy(
    store: &Store,
    settings: &PolicySettings,
    pod: &Name,
    port: u16,
) -> Option<ServerPolicy> {
    let pod = store.pod(pod)?;
    Some(match selecting_server(store, pod, port) {
        Some(server) => server_policy(store, settings, pod, port, server),
        None => default_policy(settings, pod, port),
    })
}

/// Returns the oldest Server that selects the port; of equally old ones the first by name.
fn selecting_server<'a>(store: &'a Store, pod: &PodRecord, port: u16) -> Option<&'a Server> {
    store
        .servers_in(&pod.name.namespace)
        .filter(|server| store::selects(server, pod, port))
        .min_by_key(|server| (age_order(server.created), &server.name))
}

/// Orders objects by age; those without creation time are the youngest.
pub(super) fn age_order(created: Option<i64>) -> i64 {
    created.unwrap_or(i64::MAX)
}

fn default_policy(settings: &PolicySettings, pod: &PodRecord, port: u16) -> ServerPolicy {
    let mut policy = pod.default_policy.unwrap_or(settings.default_policy);
    if pod.require_identity_ports.contains(port) {
        policy = policy.requiring_identity();
    }
    // The injector writes the default opaque ports to the pod's annotation.
    let opaque = pod
        .opaque_ports
        .as_ref()
        .is_some_and(|ports| ports.contains(port));
    let mut server = policy.server_policy(&settings.cluster_networks, DETECT_TIMEOUT, opaque);
    if let ServerProtocol::Detect { http, .. } = &mut server.protocol {
        http.routes = default_http_routes(settings, pod, port);
    }
    server
}

fn server_policy(
    store: &Store,
    settings: &PolicySettings,
    pod: &PodRecord,
    port: u16,
    server: &Server,
) -> ServerPolicy {
    let namespace = &server.name.namespace;
    let http = || HttpServer {
        routes: attached_routes(store, settings, server, store.http_routes_in(namespace))
            .unwrap_or_else(|| default_http_routes(settings, pod, port)),
        rate_limit: None,
    };
    ServerPolicy {
        meta: policy_resource("server", &server.name),
        protocol: match server.protocol {
            Protocol::Detect => ServerProtocol::Detect {
                timeout: DETECT_TIMEOUT,
                http: http(),
            },
            Protocol::Http1 => ServerProtocol::Http1(http()),
            Protocol::Http2 => ServerProtocol::Http2(http()),
            Protocol::Grpc => ServerProtocol::Grpc(
                attached_routes(store, settings, server, store.grpc_routes_in(namespace))
                    .unwrap_or_else(|| vec![default_grpc_route()]),
            ),
            Protocol::Opaque => ServerProtocol::Opaque,
            Protocol::Tls => ServerProtocol::Tls,
        },
        authorizations: authorizations(store, settings, namespace, |target| match target {
            AuthorizationTarget::Server(name) => *name == server.name.name,
            AuthorizationTarget::Namespace => true,
            _ => false,
        })
        .into_iter()
        .chain(server.access.authorizations(&settings.cluster_networks))
        .collect(),
    }
}

/// Returns the default route, to which the Server's authorizations apply, and a route for HTTP
/// probes of the kubelet.
fn default_http_routes(settings: &PolicySettings, pod: &PodRecord, port: u16) -> Vec<HttpRoute> {
    let mut routes = vec![default_http_route()];
    if let Some(paths) = pod.probes.get(&port)
        && !settings.probe_networks.is_empty()
    {
        routes.push(probe_route(settings, paths.iter()));
    }
    routes
}

fn probe_route<'a>(
    settings: &PolicySettings,
    paths: impl Iterator<Item = &'a String>,
) -> HttpRoute {
    let meta = Meta::new_default(PROBE_ROUTE);
    let probe = |path: &String| HttpMatch {
        path: Some(PathMatch::Exact(path.clone())),
        method: Some(http::Method::GET),
        ..HttpMatch::default()
    };
    let authorization = Authorization {
        meta: meta.clone(),
        networks: settings
            .probe_networks
            .iter()
            .copied()
            .map(Network::from)
            .collect(),
        authentication: Authentication::Unauthenticated,
    };
    Route {
        meta,
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: paths.map(probe).collect(),
            action: InboundRule {
                filters: Vec::new(),
                authorizations: Arc::new([authorization]),
            },
        }],
    }
}

/// Returns those of the routes that are attached to the Server, which replace the default ones;
/// `None` if there are none.
fn attached_routes<'a, M: Clone + 'a>(
    store: &Store,
    settings: &PolicySettings,
    server: &Server,
    routes: impl Iterator<Item = &'a model::Route<M>>,
) -> Option<Vec<Route<M, InboundRule>>> {
    let mut routes: Vec<_> = routes.filter(|route| is_attached(route, server)).collect();
    routes.sort_by_key(|route| (age_order(route.created), store::route_order(&route.id)));
    let routes: Vec<_> = routes
        .into_iter()
        .map(|route| convert(store, settings, route))
        .collect();
    (!routes.is_empty()).then_some(routes)
}

/// Returns whether the route is accepted for the Server. A route that references any Server with a
/// port, section or other namespace is not accepted at all.
fn is_attached<M>(route: &model::Route<M>, server: &Server) -> bool {
    let mut servers = route
        .parents
        .iter()
        .filter(|parent| parent.kind == ParentKind::Server)
        .peekable();
    let namespace = &route.id.name.namespace;
    servers.clone().all(|parent| {
        parent.port.is_none() && !parent.section && parent.name.namespace == *namespace
    }) && servers.any(|parent| parent.name == server.name)
}

fn convert<M: Clone>(
    store: &Store,
    settings: &PolicySettings,
    route: &model::Route<M>,
) -> Route<M, InboundRule> {
    let RouteId { kind, name } = &route.id;
    let authorizations: Arc<[Authorization]> =
        authorizations(store, settings, &name.namespace, |target| {
            match (kind, target) {
                (Kind::PolicyHttpRoute, AuthorizationTarget::PolicyHttpRoute(target))
                | (Kind::GatewayHttpRoute, AuthorizationTarget::GatewayHttpRoute(target))
                | (Kind::GatewayGrpcRoute, AuthorizationTarget::GatewayGrpcRoute(target)) => {
                    *target == name.name
                }
                _ => false,
            }
        })
        .into();
    Route {
        meta: route_meta(&route.id),
        hosts: route.hosts.clone(),
        rules: route
            .rules
            .iter()
            .map(|rule| Rule {
                matches: rule.matches.clone(),
                action: InboundRule {
                    filters: rule.filters.clone(),
                    authorizations: authorizations.clone(),
                },
            })
            .collect(),
    }
}

/// Returns the authorizations of all policies for a target.
fn authorizations(
    store: &Store,
    settings: &PolicySettings,
    namespace: &Arc<str>,
    targets: impl Fn(&AuthorizationTarget) -> bool,
) -> Vec<Authorization> {
    store
        .authorization_policies_in(namespace)
        .filter(|policy| targets(&policy.target))
        .filter_map(|policy| authorization(store, settings, policy))
        .collect()
}

/// Returns the authorization of a policy; `None` if an authentication does not exist: what it
/// requires is unknown, so the policy authorizes no client.
fn authorization(
    store: &Store,
    settings: &PolicySettings,
    policy: &AuthorizationPolicy,
) -> Option<Authorization> {
    let account = |name: &str, namespace: &str| {
        let id = mesh_core::identity::service_account(
            name,
            namespace,
            &settings.control_namespace,
            &settings.identity_domain,
        );
        mesh_core::identity::Identity::parse(&id).ok()
    };
    let mut networks = None;
    let mut authentication = Authentication::Unauthenticated;
    for reference in &policy.required {
        match reference {
            AuthenticationRef::Network(name) => {
                let found = store.network_authentication(name)?;
                networks = Some(found.networks.clone());
            }
            AuthenticationRef::ServiceAccount(name) => {
                authentication = Authentication::TlsAuthenticated {
                    identities: vec![account(&name.name, &name.namespace)?],
                    suffixes: Vec::new(),
                };
            }
            AuthenticationRef::MeshTls(name) => {
                let found = store.mesh_tls_authentication(name)?;
                let accounts = found
                    .service_accounts
                    .iter()
                    .filter_map(|name| account(&name.name, &name.namespace));
                let namespaces = found
                    .namespaces
                    .iter()
                    .map(|namespace| namespace_suffix(namespace, settings));
                authentication = Authentication::TlsAuthenticated {
                    identities: found.identities.iter().cloned().chain(accounts).collect(),
                    suffixes: found.suffixes.iter().cloned().chain(namespaces).collect(),
                };
            }
        }
    }
    Some(Authorization {
        meta: policy_resource("authorizationpolicy", &policy.name),
        networks: networks.unwrap_or_else(all_networks),
        authentication,
    })
}

/// Returns the suffix of the identities of all ServiceAccounts of a namespace.
fn namespace_suffix(
    namespace: &str,
    settings: &PolicySettings,
) -> mesh_core::policy::inbound::Suffix {
    let suffix = format!(
        "{namespace}.serviceaccount.identity.{}.{}",
        settings.control_namespace, settings.identity_domain
    );
    mesh_core::policy::inbound::Suffix(suffix.split('.').map(Arc::from).collect())
}

/// Linkerd uses these kinds in lower case, also in metrics.
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
