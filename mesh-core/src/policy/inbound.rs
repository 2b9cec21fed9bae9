//! Inbound policy: the clients that are authorized for one port of a workload.
//!
//! The policy controller builds a [`ServerPolicy`] for each workload and port; the proxy authorizes
//! every connection and request by the current one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ipnet::IpNet;

use crate::identity::Identity;
use crate::meta::Meta;
use crate::route::filter::Filter;
use crate::route::grpc::{self, GrpcMatch};
use crate::route::http::{self, HttpMatch, PathMatch, RequestHead};
use crate::route::{Route, Rule, RuleIndex};

mod authorize;
mod default_policy;
mod identity_match;
mod probes;
mod served;

pub use self::served::{HttpVersions, Served};
pub use self::{
    authorize::authorize,
    default_policy::{DefaultPolicy, UnknownDefaultPolicy, all_networks},
    identity_match::IdentityMatch,
    probes::{PROBE_ROUTE, PortProbes, ProbeClients},
};

/// The policy of one port.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerPolicy {
    /// The Server, or the default policy where no Server selects the port.
    pub meta: Meta,
    /// The protocol of the port.
    pub protocol: ServerProtocol,
    /// Apply to every connection, and to every route after the route's own.
    pub authorizations: Arc<[Authorization]>,
    /// The pod is being deleted: the proxy drains its clients' connections.
    pub is_terminating: bool,
}

/// The protocol of a port.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerProtocol {
    /// Detected from the first bytes.
    Detect {
        /// Time limit of detection.
        timeout: Duration,
        /// The settings of HTTP, if it is detected.
        http: HttpServer,
    },
    /// HTTP/1.
    Http1(HttpServer),
    /// HTTP/2.
    Http2(HttpServer),
    /// gRPC.
    Grpc(Vec<GrpcRoute>),
    /// Forwarded without protocol parsing.
    Opaque,
    /// TLS that the application terminates.
    Tls,
}

/// The settings of an HTTP port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpServer {
    /// The routes; the default route if empty.
    pub routes: Vec<HttpRoute>,
    /// The rate limit of the port.
    pub rate_limit: Option<RateLimit>,
}

/// A route of HTTP requests.
pub type HttpRoute = Route<HttpMatch, InboundRule>;
/// A route of gRPC calls.
pub type GrpcRoute = Route<GrpcMatch, InboundRule>;

/// The settings of an inbound rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InboundRule {
    /// Filters of the rule's requests.
    pub filters: Vec<Filter>,
    /// The route's authorizations, which its rules share.
    pub authorizations: Arc<[Authorization]>,
}

/// Authorizes clients from one of the networks that satisfy the authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// The AuthorizationPolicy or default.
    pub meta: Meta,
    /// The networks of the clients.
    pub networks: Vec<Network>,
    /// The required authentication.
    pub authentication: Authentication,
}

/// A network with exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network.
    pub net: IpNet,
    /// Networks inside it that are excluded.
    pub except: Vec<IpNet>,
}

/// The authentication that an authorization requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// None.
    Unauthenticated,
    /// Mesh TLS, with or without a client certificate.
    TlsUnauthenticated,
    /// Mesh TLS with one of these identities, or a DNS identity with one of these suffixes.
    TlsAuthenticated {
        /// The accepted identities.
        identities: Vec<Identity>,
        /// Suffixes of the accepted DNS identities.
        suffixes: Vec<Suffix>,
    },
}

/// The last labels of a DNS identity, without leading `*.`; empty matches every DNS identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Suffix(pub Vec<Arc<str>>);

/// The rate limit of a port, in requests per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The HTTPLocalRateLimitPolicy.
    pub meta: Meta,
    /// The limit of all requests together.
    pub total: Option<u32>,
    /// The limit of each client identity.
    pub identity: Option<u32>,
    /// Limits of particular identities, which replace `identity`.
    pub overrides: Vec<(Vec<Identity>, u32)>,
}

/// The properties of a client that authorization uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client<'a> {
    /// The source address of the connection.
    pub ip: IpAddr,
    /// The TLS state of the connection.
    pub tls: ClientTls<'a>,
}

/// The TLS state of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTls<'a> {
    /// Plain text, or TLS that is not terminated here.
    None,
    /// Mesh TLS without a client certificate.
    Anonymous,
    /// Mesh TLS with a verified client certificate.
    Identified(&'a Identity),
}

impl ServerPolicy {
    /// Completes a received policy as the proxy enforces it: processes of the pod itself are always
    /// authorized, and an HTTP port without routes gets the default one.
    pub fn completed(mut self) -> Self {
        self.authorizations = self
            .authorizations
            .iter()
            .cloned()
            .chain([Authorization::localhost()])
            .collect();
        match &mut self.protocol {
            ServerProtocol::Detect { http, .. }
            | ServerProtocol::Http1(http)
            | ServerProtocol::Http2(http) => {
                if http.routes.is_empty() {
                    http.routes.push(default_http_route());
                }
            }
            ServerProtocol::Grpc(routes) => {
                if routes.is_empty() {
                    routes.push(default_grpc_route());
                }
            }
            ServerProtocol::Opaque | ServerProtocol::Tls => {}
        }
        self
    }

    /// Returns the place of the rule that matches a request; `None` if no route does.
    ///
    /// A peer may announce HTTP to a port that is opaque here. The server's authorizations then
    /// apply to each request.
    pub fn find(&self, request: &RequestHead<'_>) -> Option<RuleIndex> {
        match &self.protocol {
            ServerProtocol::Detect { http, .. }
            | ServerProtocol::Http1(http)
            | ServerProtocol::Http2(http) => http_rule(&http.routes, request),
            ServerProtocol::Grpc(routes) => grpc::find(routes, request),
            ServerProtocol::Opaque | ServerProtocol::Tls => http_rule(&*OPAQUE_PORT, request),
        }
    }

    /// Returns the route and the rule at a place.
    pub fn rule(&self, at: RuleIndex) -> (&Meta, &InboundRule) {
        fn of<M>(routes: &[Route<M, InboundRule>], at: RuleIndex) -> (&Meta, &InboundRule) {
            let route = &routes[at.route];
            (&route.meta, &route.rules[at.rule].action)
        }
        match &self.protocol {
            ServerProtocol::Detect { http, .. }
            | ServerProtocol::Http1(http)
            | ServerProtocol::Http2(http) => of(&http.routes, at),
            ServerProtocol::Grpc(routes) => of(routes, at),
            ServerProtocol::Opaque | ServerProtocol::Tls => of(&*OPAQUE_PORT, at),
        }
    }

    /// Returns the authorization of requests that a rule matches; `None` if the client is not
    /// authorized.
    pub fn authorize<'a>(
        &'a self,
        rule: &'a InboundRule,
        client: &Client<'_>,
    ) -> Option<&'a Authorization> {
        authorize(&rule.authorizations, client).or_else(|| authorize(&self.authorizations, client))
    }
}

/// The routes of a port without HTTP policy.
static OPAQUE_PORT: LazyLock<[HttpRoute; 1]> = LazyLock::new(|| [default_http_route()]);

impl Authorization {
    /// Authorizes processes of the pod itself, which alone can connect to a loopback address.
    pub fn localhost() -> Self {
        let loopback = [
            IpNet::from(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        Self {
            meta: Meta::new_default("localhost"),
            networks: loopback.map(Network::from).into(),
            authentication: Authentication::Unauthenticated,
        }
    }
}

impl From<IpNet> for Network {
    fn from(net: IpNet) -> Self {
        Self {
            net,
            except: Vec::new(),
        }
    }
}

/// Returns the route of an HTTP port that no route is attached to: it matches every request, under
/// the authorizations of the server.
pub fn default_http_route() -> HttpRoute {
    default_route(HttpMatch {
        path: Some(PathMatch::Prefix("/".to_owned())),
        ..HttpMatch::default()
    })
}

/// Returns the route of a gRPC port that no route is attached to.
pub fn default_grpc_route() -> GrpcRoute {
    default_route(GrpcMatch::default())
}

fn default_route<M>(every: M) -> Route<M, InboundRule> {
    Route {
        meta: Meta::new_default("default"),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![every],
            action: InboundRule::default(),
        }],
    }
}

/// Returns the rule that matches an inbound request.
///
/// Servers interpret some paths differently (`/a/../b`, `//b`, `/a;x`, an encoded slash, bytes that
/// a URI must not contain): the rule of one interpretation could authorize what the application
/// then serves by another. So a request
/// with such a path matches no rule if a user's routes distinguish paths. The route of the
/// kubelet's probes distinguishes them too, but only authorizes more than the port does: it applies
/// to a path of the same bytes, and else is skipped, and the remaining routes apply.
pub fn http_rule(routes: &[HttpRoute], request: &RequestHead<'_>) -> Option<RuleIndex> {
    if !request.is_raw && !http::is_ambiguous(request.path) {
        return http::find(routes, request);
    }
    let is_regular = |route: &HttpRoute| !probes::is_probe_route(route);
    if routes
        .iter()
        .any(|route| is_regular(route) && http::distinguishes_paths(route))
    {
        return None;
    }
    probes::literal_rule(routes, request).or_else(|| http::find_among(routes, request, is_regular))
}

#[cfg(test)]
mod tests {
    use ::http::header::HOST;

    use super::*;
    use crate::meta::Resource;
    use crate::route::HostMatch;

    fn routes(paths: &[&str]) -> Vec<HttpRoute> {
        let rules = paths.iter().map(|path| Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix((*path).to_owned())),
                ..HttpMatch::default()
            }],
            action: InboundRule::default(),
        });
        vec![HttpRoute {
            rules: rules.collect(),
            ..default_http_route()
        }]
    }

    fn rule(routes: &[HttpRoute], path: &str) -> Option<usize> {
        let request = ::http::Request::builder().uri(path).body(()).unwrap();
        http_rule(routes, &RequestHead::from(&request)).map(|found| found.rule)
    }

    #[test]
    fn ambiguous_path_matches_no_rule_if_routes_distinguish_paths() {
        let guarded = routes(&["/", "/admin"]);
        assert_eq!(rule(&guarded, "/public"), Some(0));
        assert_eq!(rule(&guarded, "/admin/x"), Some(1));
        assert_eq!(rule(&guarded, "/%61dmin"), Some(1));
        for path in [
            "/public/../admin",
            "//admin",
            "/admin;x",
            "/public%2F..%2Fadmin",
            "/%252e/x",
        ] {
            assert_eq!(rule(&guarded, path), None, "{path}");
            assert_eq!(rule(&routes(&["/"]), path), Some(0), "{path}");
        }
        assert_eq!(rule(&guarded, "*"), Some(0));
        // The path has bytes that a URI must not contain.
        let request = ::http::Request::get("/public%3C").body(()).unwrap();
        let raw = RequestHead {
            is_raw: true,
            ..RequestHead::from(&request)
        };
        assert!(http_rule(&guarded, &raw).is_none());
        assert!(http_rule(&routes(&["/"]), &raw).is_some());
    }

    /// The route that the policy controller adds for the kubelet's probes.
    fn probe(path: &str) -> HttpRoute {
        let mut route = routes(&[]).remove(0);
        route.meta = Meta::new_default(PROBE_ROUTE);
        route.rules = vec![Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Exact(path.to_owned())),
                method: Some(::http::Method::GET),
                ..HttpMatch::default()
            }],
            action: InboundRule {
                filters: Vec::new(),
                authorizations: Arc::new([Authorization::localhost()]),
            },
        }];
        route
    }

    /// Returns the index of the matching route, and whether it authorizes more than the port does.
    fn route_of(routes: &[HttpRoute], path: &str) -> Option<(usize, bool)> {
        let request = ::http::Request::builder().uri(path).body(()).unwrap();
        let found = http_rule(routes, &RequestHead::from(&request))?;
        let rule = &routes[found.route].rules[found.rule].action;
        Some((found.route, !rule.authorizations.is_empty()))
    }

    #[test]
    fn ambiguous_path_matches_default_route_instead_of_probe_route() {
        let (strict, probed) = (Some((0, false)), Some((1, true)));
        let default = default_http_route();
        let both = [default.clone(), probe("/ready")];
        assert_eq!(route_of(&both, "/ready"), probed);
        assert_eq!(route_of(&both, "/%72eady"), probed);
        assert_eq!(route_of(&both, "/other"), strict);
        for ambiguous in [
            "//",
            "/a;v=1",
            "/a%2Fb",
            "//ready",
            "/ready;x",
            "/./ready",
            "/ready/..",
            "/x/..%2fready",
        ] {
            assert_eq!(route_of(&both, ambiguous), strict, "{ambiguous}");
            let reversed = [probe("/ready"), default.clone()];
            assert_eq!(route_of(&reversed, ambiguous), Some((1, false)));
        }
    }

    #[test]
    fn ambiguous_path_of_probe_matches_requests_with_the_same_bytes_only() {
        let (strict, probed) = (Some((0, false)), Some((1, true)));
        for path in ["//ready", "/a;v=1", "/a%2Fb", "/x/../ready", "/100%25"] {
            let both = [default_http_route(), probe(path)];
            assert_eq!(route_of(&both, path), probed, "{path}");
            assert_eq!(route_of(&both, &format!("{path}/")), strict, "{path}");
        }
        let both = [default_http_route(), probe("/a%2Fb")];
        for other in ["/a%2fb", "/%61%2Fb", "/a/b", "/a%252Fb"] {
            assert_eq!(route_of(&both, other), strict, "{other}");
        }
        let post = ::http::Request::post("/a%2Fb").body(()).unwrap();
        let found = http_rule(&both, &RequestHead::from(&post)).unwrap();
        assert_eq!(found.route, 0, "probes are GET requests");
        let request = ::http::Request::get("/a%2Fb").body(()).unwrap();
        let raw = RequestHead {
            is_raw: true,
            ..RequestHead::from(&request)
        };
        assert_eq!(http_rule(&both, &raw).unwrap().route, 0);
        // A route with conditions that a comparison of bytes leaves out.
        let mut of_host = probe("/a%2Fb");
        of_host.hosts = vec![HostMatch::Exact("web".into())];
        let mut with_header = probe("/a%2Fb");
        with_header.rules[0].matches[0].headers = vec![http::HeaderMatch {
            name: HOST,
            value: http::HeaderValueMatch::Exact("web".parse().unwrap()),
        }];
        for narrow in [of_host, with_header] {
            assert_eq!(route_of(&[default_http_route(), narrow], "/a%2Fb"), strict);
        }
    }

    #[test]
    fn ambiguous_path_matches_no_rule_if_user_routes_distinguish_paths() {
        let mut guarded = routes(&["/", "/admin"]);
        let user = Resource::new("policy.linkerd.io", "HTTPRoute", "shop", "probe");
        guarded[0].meta = Meta::Resource(user);
        guarded.push(probe("/ready"));
        assert_eq!(route_of(&guarded, "/ready"), Some((1, true)));
        assert_eq!(route_of(&guarded, "//ready"), None);
        guarded.push(probe("//ready"));
        assert_eq!(route_of(&guarded, "//ready"), None);
        assert_eq!(route_of(&[probe("/ready")], "//ready"), None);
    }
}
