//! Outbound policy: the routes and backends of one destination.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use crate::backend::{Backend, BackendTarget};
use crate::meta::Meta;
use crate::profile::Profile;
use crate::resilience::{FailureAccrual, GrpcRetry, HttpRetry, Timeouts};
use crate::route::filter::Filter;
use crate::route::grpc::GrpcMatch;
use crate::route::http::HttpMatch;
use crate::route::{HostMatch, Route, Rule};

/// The policy of one destination.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundPolicy {
    /// The Service or EgressNetwork.
    pub parent: Meta,
    /// The protocol of the destination.
    pub protocol: OutboundProtocol,
}

#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value for each destination, read behind a reference"
)]
/// The protocol of a destination, with its routes.
pub enum OutboundProtocol {
    /// Detected from the first bytes.
    Detect {
        /// Time limit of detection.
        timeout: Duration,
        /// The route of other protocols.
        opaque: Option<TcpRoute>,
        /// The routes of HTTP/1.
        http1: HttpRoutes,
        /// The routes of HTTP/2.
        http2: HttpRoutes,
    },
    /// HTTP/1.
    Http1(HttpRoutes),
    /// HTTP/2.
    Http2(HttpRoutes),
    /// gRPC.
    Grpc(GrpcRoutes),
    /// Forwarded without protocol parsing.
    Opaque(Option<TcpRoute>),
    /// TLS that is passed through.
    Tls(Vec<TlsRoute>),
}

/// The routes of a destination that match with `M` and retry by `T`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes<M, T> {
    /// Alternative routes; the most specific match applies.
    pub routes: Vec<Route<M, OutboundRule<T>>>,
    /// When the balancer stops using failing endpoints.
    pub failure_accrual: Option<FailureAccrual>,
}

/// The HTTP routes of a destination.
pub type HttpRoutes = Routes<HttpMatch, HttpRetry>;
/// The gRPC routes of a destination.
pub type GrpcRoutes = Routes<GrpcMatch, GrpcRetry>;
/// A route of HTTP requests.
pub type HttpRoute = Route<HttpMatch, OutboundRule<HttpRetry>>;
/// A route of gRPC calls.
pub type GrpcRoute = Route<GrpcMatch, OutboundRule<GrpcRetry>>;

/// The settings of an outbound rule; `T` is the kind of retry.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundRule<T> {
    /// Filters of the rule's requests.
    pub filters: Vec<Filter>,
    /// The backends of the rule.
    pub backends: Distribution,
    /// Time limits of the rule's requests.
    pub timeouts: Timeouts,
    /// The retry policy.
    pub retry: Option<T>,
    /// Whether request headers such as `l5d-timeout` and `l5d-retry-http` override the settings.
    pub allow_request_headers: bool,
}

/// The route of opaque traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpRoute {
    /// The TCPRoute or default.
    pub meta: Meta,
    /// Where connections are forwarded to.
    pub backends: Distribution,
    /// Whether connections are forwarded.
    pub verdict: TcpVerdict,
}

/// A route of TLS traffic that is passed through, chosen by SNI.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsRoute {
    /// The TLSRoute or default.
    pub meta: Meta,
    /// Empty matches every SNI.
    pub snis: Vec<HostMatch>,
    /// Where connections are forwarded to.
    pub backends: Distribution,
    /// Whether connections are forwarded.
    pub verdict: TcpVerdict,
}

/// The decision about connections of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpVerdict {
    /// Forwards the connection.
    Forward,
    /// Rejects the connection by policy.
    Forbidden,
    /// Rejects the connection because the route is invalid, for this reason.
    Invalid(Arc<str>),
}

/// The selection of a backend.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// No backend.
    Empty,
    /// The first available backend.
    FirstAvailable(Vec<Arc<RouteBackend>>),
    /// A random available backend, by non-zero weights.
    RandomAvailable(Vec<(Arc<RouteBackend>, u32)>),
}

/// A backend of a route with its filters.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteBackend {
    /// Where requests or connections are forwarded to.
    pub backend: Backend,
    /// Filters of the requests to this backend.
    pub filters: Vec<Filter>,
    /// The decision of TCP and TLS routes; `Forward` for HTTP.
    pub verdict: TcpVerdict,
}

/// The destination that a workload connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address.
    Addr(SocketAddr),
    /// A name with an optional port.
    Authority(Arc<str>),
}

impl OutboundPolicy {
    /// Returns a policy that detects the protocol and sends everything to one backend.
    pub fn forwarding(meta: &Meta, target: BackendTarget, detect_timeout: Duration) -> Self {
        let backend = Backend {
            meta: meta.clone(),
            target,
        };
        let backends = Distribution::FirstAvailable(vec![Arc::new(RouteBackend {
            backend,
            filters: Vec::new(),
            verdict: TcpVerdict::Forward,
        })]);
        let rule = Rule {
            matches: vec![HttpMatch::default()],
            action: OutboundRule {
                filters: Vec::new(),
                backends: backends.clone(),
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            },
        };
        let http = HttpRoutes {
            routes: vec![Route {
                meta: meta.clone(),
                hosts: Vec::new(),
                rules: vec![rule],
            }],
            failure_accrual: None,
        };
        Self {
            parent: meta.clone(),
            protocol: OutboundProtocol::Detect {
                timeout: detect_timeout,
                opaque: Some(TcpRoute {
                    meta: meta.clone(),
                    backends,
                    verdict: TcpVerdict::Forward,
                }),
                http1: http.clone(),
                http2: http,
            },
        }
    }
}

impl OutboundProtocol {
    /// Returns the route of connections that are not parsed: by the policy, or by the profile where
    /// the policy would detect the protocol. `None` if connections are parsed.
    pub fn opaque(&self, profile: &Profile) -> Option<Option<&TcpRoute>> {
        match self {
            Self::Opaque(route) => Some(route.as_ref()),
            Self::Detect { opaque, .. } if profile.opaque => Some(opaque.as_ref()),
            _ => None,
        }
    }
}

impl TcpRoute {
    /// Returns whether the profile splits the connections of the route, which it only does where
    /// the policy allows them.
    pub fn is_split_by(&self, profile: &Profile) -> bool {
        self.verdict == TcpVerdict::Forward && !profile.overrides.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::WeightedAuthority;

    fn route(verdict: TcpVerdict) -> TcpRoute {
        TcpRoute {
            meta: Meta::new_default("tcp"),
            backends: Distribution::Empty,
            verdict,
        }
    }

    #[test]
    fn policy_or_profile_decides_that_connections_are_opaque() {
        let forward = route(TcpVerdict::Forward);
        let http = HttpRoutes {
            routes: Vec::new(),
            failure_accrual: None,
        };
        let detected = |opaque: Option<&TcpRoute>| OutboundProtocol::Detect {
            timeout: Duration::from_secs(1),
            opaque: opaque.cloned(),
            http1: http.clone(),
            http2: http.clone(),
        };
        let by_policy = |route: Option<&TcpRoute>| OutboundProtocol::Opaque(route.cloned());
        let some = Some(&forward);
        for (protocol, profile_opaque, expected) in [
            (by_policy(some), false, Some(some)),
            (by_policy(None), false, Some(None)),
            (detected(some), false, None),
            (detected(some), true, Some(some)),
            (detected(None), true, Some(None)),
            (OutboundProtocol::Http1(http.clone()), true, None),
        ] {
            let profile = Profile {
                opaque: profile_opaque,
                ..Profile::default()
            };
            assert_eq!(protocol.opaque(&profile), expected, "{protocol:?}");
        }
    }

    #[test]
    fn profile_splits_connections_that_the_policy_allows() {
        let split = Profile {
            overrides: vec![WeightedAuthority {
                authority: "other:80".into(),
                weight: 1,
            }],
            ..Profile::default()
        };
        let allowed = route(TcpVerdict::Forward);
        assert!(allowed.is_split_by(&split));
        assert!(!allowed.is_split_by(&Profile::default()));
        assert!(!route(TcpVerdict::Forbidden).is_split_by(&split));
    }
}
