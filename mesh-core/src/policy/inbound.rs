//! Inbound policy: who may talk to one port of a workload.
//!
//! The policy controller builds a [`ServerPolicy`] per workload and port; the proxy judges every
//! connection and request by the newest one.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::{
    identity::Identity,
    meta::Meta,
    route::{
        Found, Route, Rule,
        filter::Filter,
        grpc::GrpcMatch,
        http::{self, HttpMatch, PathMatch, RequestHead},
    },
};

mod authorize;
mod default_policy;

pub use self::{
    authorize::authorize,
    default_policy::{DefaultPolicy, UnknownDefaultPolicy, all_networks},
};

/// The policy of one port.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerPolicy {
    /// The Server, or the default policy that applies where no Server selects the port.
    pub meta: Meta,
    pub protocol: ServerProtocol,
    /// They count for every connection and for every route, after the route's own.
    pub authorizations: Arc<[Authorization]>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ServerProtocol {
    Detect { timeout: Duration, http: HttpServer },
    Http1(HttpServer),
    Http2(HttpServer),
    Grpc(Vec<GrpcRoute>),
    Opaque,
    Tls,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpServer {
    pub routes: Vec<HttpRoute>,
    pub rate_limit: Option<RateLimit>,
}

pub type HttpRoute = Route<HttpMatch, InboundRule>;
pub type GrpcRoute = Route<GrpcMatch, InboundRule>;

/// What an inbound rule carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InboundRule {
    pub filters: Vec<Filter>,
    /// Those of the route; shared by its rules.
    pub authorizations: Arc<[Authorization]>,
}

/// Lets the clients through that come from one of the networks and satisfy the authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    pub meta: Meta,
    pub networks: Vec<Network>,
    pub authentication: Authentication,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    pub net: IpNet,
    pub except: Vec<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    Unauthenticated,
    /// Mesh TLS, with or without a client certificate.
    TlsUnauthenticated,
    /// Mesh TLS with one of these identities, or a DNS identity with one of these suffixes.
    TlsAuthenticated {
        identities: Vec<Identity>,
        suffixes: Vec<Suffix>,
    },
}

/// The tail of a DNS-like identity, without leading `*.`; empty matches every DNS identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suffix(pub Vec<Arc<str>>);

/// Requests per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    pub meta: Meta,
    pub total: Option<u32>,
    pub identity: Option<u32>,
    pub overrides: Vec<(Vec<Identity>, u32)>,
}

/// What is known of a client when its connection or request is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client<'a> {
    pub ip: IpAddr,
    pub tls: ClientTls<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTls<'a> {
    /// No mesh TLS ended here: plain text, or TLS that is passed through.
    None,
    Anonymous,
    Identified(&'a Identity),
}

impl ServerPolicy {
    /// What a proxy judges by when this policy arrives: processes of the pod itself always pass,
    /// and an HTTP port without routes has the default one.
    pub fn completed(mut self) -> Self {
        self.authorizations = self
            .authorizations
            .iter()
            .cloned()
            .chain([Authorization::of_localhost()])
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
}

impl Authorization {
    /// Lets processes of the pod itself through: whoever can dial a loopback address is already
    /// inside.
    pub fn of_localhost() -> Self {
        let loopback = |ip: IpAddr| Network {
            net: IpNet::from(ip),
            except: Vec::new(),
        };
        Self {
            meta: Meta::new_default("localhost"),
            networks: vec![
                loopback(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
                loopback(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)),
            ],
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

/// The name of the route that admits the kubelet's probes where policy does not, as in Linkerd. A
/// policy controller adds it beside the default route.
pub const PROBE_ROUTE: &str = "probe";

/// The route of an HTTP port that no route is attached to: every request, under the authorizations
/// of the server.
pub fn default_http_route() -> HttpRoute {
    Route {
        meta: Meta::new_default("default"),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix("/".to_owned())),
                ..HttpMatch::default()
            }],
            then: InboundRule::default(),
        }],
    }
}

/// The same for a gRPC port.
pub fn default_grpc_route() -> GrpcRoute {
    Route {
        meta: Meta::new_default("default"),
        hosts: Vec::new(),
        rules: vec![Rule {
            matches: vec![GrpcMatch::default()],
            then: InboundRule::default(),
        }],
    }
}

/// The rule an inbound request falls under.
///
/// Servers read some paths in different ways (`/a/../b`, `//b`, `/a;x`, an encoded slash): the rule
/// found for one reading could admit what the application then serves by another. So a request with
/// such a path falls under no rule where a user's routes tell paths apart. The route of the
/// kubelet's probes tells them apart too, but it only admits more than the port does: it is left
/// out, and what the port says of everything else applies.
pub fn http_rule(routes: &[HttpRoute], request: &RequestHead<'_>) -> Option<Found> {
    if !http::is_ambiguous(request.path) {
        return http::find(routes, request);
    }
    let rest = |route: &HttpRoute| !is_probe_route(route);
    if routes
        .iter()
        .any(|route| rest(route) && http::distinguishes_paths(route))
    {
        return None;
    }
    http::find_among(routes, request, rest)
}

fn is_probe_route(route: &HttpRoute) -> bool {
    matches!(&route.meta, Meta::Default(name) if **name == *PROBE_ROUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(paths: &[&str]) -> Vec<HttpRoute> {
        let rules = paths.iter().map(|path| Rule {
            matches: vec![HttpMatch {
                path: Some(PathMatch::Prefix((*path).to_owned())),
                ..HttpMatch::default()
            }],
            then: InboundRule::default(),
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
    fn ambiguous_paths_fall_under_no_rule_that_tells_paths_apart() {
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
            then: InboundRule {
                filters: Vec::new(),
                authorizations: Arc::new([Authorization::of_localhost()]),
            },
        }];
        route
    }

    /// Which route applies, and whether it admits more than the port does.
    fn route_of(routes: &[HttpRoute], path: &str) -> Option<(usize, bool)> {
        let request = ::http::Request::builder().uri(path).body(()).unwrap();
        let found = http_rule(routes, &RequestHead::from(&request))?;
        let rule = &routes[found.route].rules[found.rule].then;
        Some((found.route, !rule.authorizations.is_empty()))
    }

    #[test]
    fn ambiguous_paths_get_the_default_route_not_the_allowance_of_a_probe() {
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
        // A probe path that is ambiguous itself is no allowance either: which resource it names is
        // not known.
        assert_eq!(route_of(&[default, probe("//ready")], "//ready"), strict);
    }

    #[test]
    fn ambiguous_paths_fall_under_no_rule_where_a_user_tells_paths_apart_beside_a_probe() {
        let mut guarded = routes(&["/", "/admin"]);
        guarded[0].meta = Meta::Resource(crate::meta::Resource {
            group: "policy.linkerd.io".into(),
            kind: "HTTPRoute".into(),
            namespace: "shop".into(),
            name: "probe".into(),
            section: "".into(),
            port: None,
        });
        guarded.push(probe("/ready"));
        assert_eq!(route_of(&guarded, "/ready"), Some((1, true)));
        assert_eq!(route_of(&guarded, "//ready"), None);
        assert_eq!(route_of(&[probe("/ready")], "//ready"), None);
    }
}
