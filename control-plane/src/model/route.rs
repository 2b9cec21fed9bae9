//! Routes, inbound to a Server or outbound to a Service; one record serves both.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use mesh_core::{
    resilience::Timeouts,
    route::{HostMatch, filter::Filter, grpc::GrpcMatch, http::HttpMatch},
};

use super::{Kind, Name};

/// A route whose rules match with `M`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<M> {
    pub id: RouteId,
    /// Seconds since 1970; absent for objects that no API server has seen.
    pub created: Option<i64>,
    pub parents: Vec<ParentRef>,
    pub hosts: Vec<HostMatch>,
    pub rules: Vec<Rule<M>>,
    /// The three limits of its annotations, which together replace those of the parent.
    pub timeouts: Option<Timeouts>,
    pub retries: Option<Retries>,
}

pub type HttpRoute = Route<HttpMatch>;
pub type GrpcRoute = Route<GrpcMatch>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteId {
    pub kind: Kind,
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentRef {
    pub kind: ParentKind,
    pub name: Name,
    pub port: Option<u16>,
    /// It names a section of the parent, which none of our parents has.
    pub section: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentKind {
    Server,
    Service,
    /// Of another implementation, or of a kind the mesh does not serve.
    Other,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule<M> {
    pub matches: Vec<M>,
    pub filters: Vec<Filter>,
    /// Absent: the parent itself.
    pub backends: Option<Vec<BackendRule>>,
    /// `timeouts.request`
    pub request_timeout: Option<Duration>,
}

/// A backend with its share.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendRule {
    pub backend: BackendRef,
    pub weight: u32,
    /// The filters of this backend, or why they cannot be applied.
    pub filters: Result<Vec<Filter>, Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRef {
    pub kind: BackendKind,
    /// Without namespace in the object: that of the route's parent.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    pub port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    Service,
    Other,
}

/// What the `retry.linkerd.io` annotations say.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    pub limit: u16,
    pub timeout: Option<Duration>,
    /// HTTP statuses to retry.
    pub http: Vec<RangeInclusive<u16>>,
    /// gRPC codes to retry.
    pub grpc: Vec<u16>,
}
