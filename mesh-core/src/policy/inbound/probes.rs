//! The kubelet's requests to a pod: probes and hooks. They must succeed where policy denies all
//! other clients, or the pod is restarted.
//!
//! The path of a request is known from the pod's specification, unless TLS hides it or the
//! application redirects the kubelet elsewhere. Then only the address of the pod's node is left to
//! recognize the kubelet (docs/adr/0188).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use http::Method;
use ipnet::IpNet;

use super::{
    Authentication, Authorization, HttpRoute, InboundRule, Network, ServerPolicy, ServerProtocol,
};
use crate::meta::Meta;
use crate::route::grpc::GrpcMatch;
use crate::route::http::{HttpMatch, PathMatch, RequestHead};
use crate::route::{Route, Rule, RuleIndex};

/// The name of the route that authorizes the kubelet's probes where policy does not, as in Linkerd.
/// The policy controller adds it to the default route.
pub const PROBE_ROUTE: &str = "probe";

/// The service and method that a gRPC probe calls.
const HEALTH_CHECK: (&str, &str) = ("grpc.health.v1.Health", "Check");

/// The requests that the kubelet sends to one port of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortProbes {
    /// The paths of GET requests without TLS, as the kubelet sends them, without queries.
    pub paths: BTreeSet<String>,
    /// Whether it calls the health service of gRPC.
    pub grpc: bool,
    /// Whether it sends requests in TLS, which hides their paths.
    pub tls: bool,
}

/// The clients that may send the kubelet's requests.
#[derive(Clone, Copy, Debug)]
pub struct ProbeClients<'a> {
    /// May send requests whose path is known. Empty admits none.
    pub networks: &'a [IpNet],
    /// Addresses of the pod's node: may send anything to a port where a path cannot be known. Empty
    /// admits none.
    pub node: &'a [IpAddr],
}

impl ServerPolicy {
    /// Admits the kubelet's requests to the port beside the clients of the policy. Routes that
    /// users attached replace this, as in Linkerd.
    pub fn admitting(mut self, probes: &PortProbes, clients: ProbeClients<'_>) -> Self {
        let known = authorization(clients.networks.iter().copied());
        let is_path_hidden = match &mut self.protocol {
            ServerProtocol::Detect { http, .. } if is_default(&http.routes) => {
                http.routes
                    .extend(known.and_then(|it| http_route(probes, it)));
                // A response may redirect the kubelet to another path of the port.
                probes.tls || !probes.paths.is_empty()
            }
            ServerProtocol::Http1(http) | ServerProtocol::Http2(http)
                if is_default(&http.routes) =>
            {
                http.routes
                    .extend(known.and_then(|it| http_route(probes, it)));
                // TLS is refused here, from every client.
                !probes.paths.is_empty()
            }
            ServerProtocol::Grpc(routes) if is_default(routes) => {
                let check = GrpcMatch {
                    service: Some(HEALTH_CHECK.0.into()),
                    method: Some(HEALTH_CHECK.1.into()),
                    headers: Vec::new(),
                };
                let authorization = known.filter(|_| probes.grpc);
                routes.extend(authorization.map(|it| route(vec![check], it)));
                false
            }
            ServerProtocol::Opaque | ServerProtocol::Tls => true,
            ServerProtocol::Detect { .. }
            | ServerProtocol::Http1(_)
            | ServerProtocol::Http2(_)
            | ServerProtocol::Grpc(_) => false,
        };
        let node = clients.node.iter().copied().map(IpNet::from);
        if let Some(node) = authorization(node).filter(|_| is_path_hidden) {
            let authorizations = self.authorizations.iter().cloned();
            self.authorizations = authorizations.chain([node]).collect();
        }
        self
    }
}

/// Whether no user attached a route.
fn is_default<M, R>(routes: &[Route<M, R>]) -> bool {
    let is_of_mesh = |meta: &Meta| matches!(meta, Meta::Default(_));
    routes.iter().all(|route| is_of_mesh(&route.meta))
}

fn http_route(probes: &PortProbes, authorization: Authorization) -> Option<HttpRoute> {
    let exact = |path: String, method: Method| HttpMatch {
        path: Some(PathMatch::Exact(path)),
        method: Some(method),
        ..HttpMatch::default()
    };
    let (service, method) = HEALTH_CHECK;
    let check = || exact(format!("/{service}/{method}"), Method::POST);
    let paths = probes.paths.iter().cloned();
    let paths = paths.map(|path| exact(path, Method::GET));
    let matches: Vec<HttpMatch> = paths.chain(probes.grpc.then(check)).collect();
    (!matches.is_empty()).then(|| route(matches, authorization))
}

fn route<M>(matches: Vec<M>, authorization: Authorization) -> Route<M, InboundRule> {
    Route {
        meta: Meta::new_default(PROBE_ROUTE),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches,
            action: InboundRule {
                filters: Vec::new(),
                authorizations: Arc::new([authorization]),
            },
        }],
    }
}

/// Returns the authorization of every client in the networks; `None` without networks.
fn authorization(networks: impl Iterator<Item = IpNet>) -> Option<Authorization> {
    let networks: Vec<Network> = networks.map(Network::from).collect();
    (!networks.is_empty()).then(|| Authorization {
        meta: Meta::new_default(PROBE_ROUTE),
        networks,
        authentication: Authentication::Unauthenticated,
    })
}

pub(super) fn is_probe_route(route: &HttpRoute) -> bool {
    matches!(&route.meta, Meta::Default(name) if **name == *PROBE_ROUTE)
}

/// Returns the rule of a probe whose path has the same bytes as the request's. The
/// application interprets equal bytes equally, however ambiguous they are.
pub(super) fn literal_rule(routes: &[HttpRoute], request: &RequestHead<'_>) -> Option<RuleIndex> {
    let is_literal = |entry: &HttpMatch| {
        let HttpMatch {
            path: Some(PathMatch::Exact(path)),
            method: Some(method),
            headers,
            query,
        } = entry
        else {
            return false;
        };
        headers.is_empty() && query.is_empty() && path == request.path && method == request.method
    };
    if request.is_raw {
        return None;
    }
    let mut probes = routes
        .iter()
        .enumerate()
        .filter(|(_, route)| is_probe_route(route) && route.hosts.is_empty());
    probes.find_map(|(index, route)| {
        let mut rules = route.rules.iter();
        let rule = rules.position(|rule| rule.matches.iter().any(is_literal))?;
        Some(RuleIndex {
            route: index,
            rule,
            prefix: None,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;

    use super::super::{Client, ClientTls, HttpServer, default_grpc_route, default_http_route};
    use super::*;
    use crate::meta::Resource;

    const HEALTH: &str = "/grpc.health.v1.Health/Check";

    fn http() -> HttpServer {
        HttpServer {
            routes: vec![default_http_route()],
            rate_limit: None,
        }
    }

    fn detect(http: HttpServer) -> ServerProtocol {
        let timeout = Duration::from_secs(1);
        ServerProtocol::Detect { timeout, http }
    }

    fn grpc() -> ServerProtocol {
        ServerProtocol::Grpc(vec![default_grpc_route()])
    }

    /// A port that probes of HTTP in the clear, of gRPC and in TLS are sent to.
    fn probes(paths: &[&str], grpc: bool, tls: bool) -> PortProbes {
        PortProbes {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            grpc,
            tls,
        }
    }

    fn denying(protocol: ServerProtocol) -> ServerPolicy {
        ServerPolicy {
            meta: Meta::new_default("deny"),
            protocol,
            authorizations: Arc::new([]),
            is_terminating: false,
        }
    }

    /// Whether a policy admits a client without TLS, with a request or with a connection that is
    /// not HTTP.
    fn admits(policy: &ServerPolicy, ip: &str, request: Option<(Method, &str)>) -> bool {
        let client = Client {
            ip: ip.parse().unwrap(),
            tls: ClientTls::None,
        };
        let none = InboundRule::default();
        let rule = match &request {
            None => &none,
            Some((method, path)) => {
                let head = RequestHead {
                    method,
                    scheme: None,
                    authority: None,
                    path,
                    is_raw: false,
                    query: None,
                    headers: &HeaderMap::new(),
                };
                let Some(at) = policy.find(&head) else {
                    return false;
                };
                policy.rule(at).1
            }
        };
        policy.authorize(rule, &client).is_some()
    }

    const KUBELET: &str = "10.0.0.7";
    const NODE: &str = "192.168.0.1";

    fn admitting(policy: ServerPolicy, probes: &PortProbes) -> ServerPolicy {
        let clients = ProbeClients {
            networks: &["10.0.0.0/24".parse().unwrap()],
            node: &[NODE.parse().unwrap()],
        };
        policy.admitting(probes, clients)
    }

    /// A client of the networks may send the known requests, and the node anything where a path
    /// cannot be known.
    #[test]
    fn kubelet_is_admitted_by_its_requests_or_by_its_address() {
        let get = |path| Some((Method::GET, path));
        let post = |path| Some((Method::POST, path));
        let paths = || probes(&["/ready", "/live"], false, false);
        let clear: [fn() -> ServerProtocol; 3] = [
            || detect(http()),
            || ServerProtocol::Http1(http()),
            || ServerProtocol::Http2(http()),
        ];
        let mut rows = Vec::new();
        for protocol in clear {
            rows.extend([
                (protocol(), paths(), get("/ready"), true, true),
                (protocol(), paths(), get("/live"), true, true),
                // A response may have redirected the kubelet.
                (protocol(), paths(), get("/other"), false, true),
                (protocol(), paths(), post("/ready"), false, true),
                (
                    protocol(),
                    probes(&[], true, false),
                    post(HEALTH),
                    true,
                    false,
                ),
                (
                    protocol(),
                    probes(&[], true, false),
                    get(HEALTH),
                    false,
                    false,
                ),
                (
                    protocol(),
                    probes(&[], false, false),
                    get("/"),
                    false,
                    false,
                ),
            ]);
        }
        let tls = || probes(&[], false, true);
        rows.extend([
            (detect(http()), tls(), None, false, true),
            (detect(http()), tls(), get("/"), false, true),
            // TLS is refused here.
            (ServerProtocol::Http1(http()), tls(), get("/"), false, false),
            (grpc(), probes(&[], true, true), post(HEALTH), true, false),
            (
                grpc(),
                probes(&[], true, true),
                post("/a.B/C"),
                false,
                false,
            ),
            (grpc(), paths(), post(HEALTH), false, false),
            (ServerProtocol::Opaque, paths(), None, false, true),
            (ServerProtocol::Tls, tls(), None, false, true),
        ]);
        for (protocol, probes, request, in_networks, on_node) in rows {
            let policy = admitting(denying(protocol), &probes);
            let found = [KUBELET, NODE].map(|ip| admits(&policy, ip, request.clone()));
            let case = format!("{:?} {probes:?} {request:?}", policy.protocol);
            assert_eq!(found, [in_networks, on_node], "{case}");
            assert!(!admits(&policy, "10.0.1.7", request.clone()), "{case}");
        }
    }

    #[test]
    fn routes_of_users_replace_the_admission() {
        let user = Meta::Resource(Resource::new(
            "policy.linkerd.io",
            "HTTPRoute",
            "shop",
            "web",
        ));
        let mut http = http();
        http.routes[0].meta = user.clone();
        let grpc = vec![Route {
            meta: user,
            ..default_grpc_route()
        }];
        for protocol in [
            detect(http.clone()),
            ServerProtocol::Http1(http.clone()),
            ServerProtocol::Http2(http),
            ServerProtocol::Grpc(grpc),
        ] {
            let policy = denying(protocol);
            let probed = probes(&["/ready"], true, true);
            assert_eq!(admitting(policy.clone(), &probed), policy);
        }
    }

    #[test]
    fn no_client_is_admitted_without_addresses() {
        let none = ProbeClients {
            networks: &[],
            node: &[],
        };
        for protocol in [detect(http()), grpc(), ServerProtocol::Opaque] {
            let policy = denying(protocol);
            let probed = probes(&["/ready"], true, true);
            assert_eq!(policy.clone().admitting(&probed, none), policy);
        }
    }
}
