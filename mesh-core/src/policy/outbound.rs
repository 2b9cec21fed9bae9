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
use crate::route::{HostMatch, Route};

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
