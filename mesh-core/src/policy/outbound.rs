//! Outbound policy: where a workload's traffic to one destination goes.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::{
    endpoint::Endpoint,
    meta::Meta,
    resilience::{FailureAccrual, GrpcRetry, HttpRetry, PeakEwma, Timeouts},
    route::{HostMatch, Route, filter::Filter, grpc::GrpcMatch, http::HttpMatch},
};

/// The policy of one destination.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundPolicy {
    /// The Service or EgressNetwork.
    pub parent: Meta,
    pub protocol: OutboundProtocol,
}

#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value for each destination, read behind a reference"
)]
pub enum OutboundProtocol {
    Detect {
        timeout: Duration,
        opaque: Option<TcpRoute>,
        http1: HttpRoutes,
        http2: HttpRoutes,
    },
    Http1(HttpRoutes),
    Http2(HttpRoutes),
    Grpc(GrpcRoutes),
    Opaque(Option<TcpRoute>),
    Tls(Vec<TlsRoute>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpRoutes {
    pub routes: Vec<HttpRoute>,
    pub failure_accrual: Option<FailureAccrual>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrpcRoutes {
    pub routes: Vec<GrpcRoute>,
    pub failure_accrual: Option<FailureAccrual>,
}

pub type HttpRoute = Route<HttpMatch, OutboundRule<HttpRetry>>;
pub type GrpcRoute = Route<GrpcMatch, OutboundRule<GrpcRetry>>;

/// What an outbound rule carries; `T` is the kind of retry.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundRule<T> {
    pub filters: Vec<Filter>,
    pub backends: Distribution,
    pub timeouts: Timeouts,
    pub retry: Option<T>,
    /// Whether `l5d-timeout`, `l5d-retry-http` and their kin are obeyed.
    pub allow_request_headers: bool,
}

/// The one route of opaque traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpRoute {
    pub meta: Meta,
    pub backends: Distribution,
    pub verdict: TcpVerdict,
}

/// A route of TLS traffic that is passed through, chosen by SNI.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsRoute {
    pub meta: Meta,
    /// Empty matches every SNI.
    pub snis: Vec<HostMatch>,
    pub backends: Distribution,
    pub verdict: TcpVerdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpVerdict {
    Forward,
    Forbidden,
    Invalid(Arc<str>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    Empty,
    FirstAvailable(Vec<Arc<RouteBackend>>),
    /// Weights are not zero.
    RandomAvailable(Vec<(Arc<RouteBackend>, u32)>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RouteBackend {
    pub backend: Backend,
    pub filters: Vec<Filter>,
    /// The verdict of TCP and TLS routes; `Forward` for HTTP.
    pub verdict: TcpVerdict,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    pub meta: Meta,
    pub target: BackendTarget,
}

#[derive(Clone, Debug, PartialEq)]
pub enum BackendTarget {
    /// One fixed endpoint.
    Forward(Box<Endpoint>),
    /// Balances over what `Destination.Get` answers for `authority`.
    Balance { authority: Arc<str>, load: PeakEwma },
    /// Nothing to send to: the Service does not exist.
    None,
}

/// What a workload asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Addr(SocketAddr),
    Authority(Arc<str>),
}
