//! Inbound policy: who may talk to one port of a workload.
//!
//! The policy controller builds a [`ServerPolicy`] per workload and port; the proxy judges every connection and request by the newest one.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::{
    identity::Identity,
    meta::Meta,
    route::{Route, filter::Filter, grpc::GrpcMatch, http::HttpMatch},
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
