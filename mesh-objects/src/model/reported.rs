//! The objects whose status the policy controller writes, with the status that they have.
//!
//! The index has records of the same objects with the fields that decide about traffic. A record
//! here exists for invalid objects, too, and changes with every change of the object's status.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::{BackendRef, EgressNetwork, Kind, Name, ParentRef};

/// An object whose status the policy controller writes.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedObject {
    pub kind: ReportedKind,
    pub name: Name,
    /// For example `policy.linkerd.io/v1beta3`
    pub api_version: Arc<str>,
    pub resource_version: Option<Arc<str>>,
    pub generation: Option<i64>,
    /// Seconds since 1970; `None` for objects that are not from an API server.
    pub created: Option<i64>,
    /// The reason why the object has no effect: the field and the expected value.
    pub problem: Option<Arc<str>>,
    pub spec: ReportedSpec,
    /// The `status` as it was read, because entries of other controllers are written back as they
    /// are.
    pub status: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReportedKind {
    PolicyHttpRoute,
    GatewayHttpRoute,
    GatewayGrpcRoute,
    GatewayTlsRoute,
    GatewayTcpRoute,
    RateLimitPolicy,
    EgressNetwork,
}

/// The fields that decide about the status.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportedSpec {
    Route(ReportedRoute),
    RateLimit(ReportedTarget),
    /// `None` if it is invalid.
    EgressNetwork(Option<Arc<EgressNetwork>>),
}

/// The object that a policy is about, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedTarget {
    pub group: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedRoute {
    pub parents: Vec<ParentRef>,
    pub backends: Vec<ReportedBackend>,
    /// Why a rule fails its requests: a filter that the mesh cannot apply.
    pub unsupported: Option<Arc<str>>,
    /// Why a rule fails its requests to a Server: a filter that only clients apply.
    pub unsupported_by_servers: Option<Arc<str>>,
    /// A filter that Servers' proxies leave out.
    pub left_out_by_servers: Option<Arc<str>>,
    /// A filter that Linkerd's proxies leave out.
    pub left_out_by_linkerd: Option<Arc<str>>,
}

/// A backend of a route's rule, or of its mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedBackend {
    /// For example `spec.rules[0].backendRefs[1]`
    pub field: Arc<str>,
    pub reference: BackendRef,
    /// The kind as it was written.
    pub kind: Arc<str>,
    /// Why its filters cannot be applied.
    pub problem: Option<Arc<str>>,
}

impl ReportedTarget {
    pub fn is_server(&self) -> bool {
        self.group.eq_ignore_ascii_case("policy.linkerd.io")
            && self.kind.eq_ignore_ascii_case("Server")
    }
}

impl ReportedKind {
    /// Returns the kind of the record in the index.
    pub fn indexed(self) -> Kind {
        match self {
            Self::PolicyHttpRoute => Kind::PolicyHttpRoute,
            Self::GatewayHttpRoute => Kind::GatewayHttpRoute,
            Self::GatewayGrpcRoute => Kind::GatewayGrpcRoute,
            Self::GatewayTlsRoute => Kind::GatewayTlsRoute,
            Self::GatewayTcpRoute => Kind::GatewayTcpRoute,
            Self::RateLimitPolicy => Kind::RateLimitPolicy,
            Self::EgressNetwork => Kind::EgressNetwork,
        }
    }

    pub fn group(self) -> &'static str {
        self.indexed().group()
    }

    pub fn as_str(self) -> &'static str {
        self.indexed().as_str()
    }

    /// Returns the name of the resource in paths of the API.
    pub fn plural(self) -> &'static str {
        match self {
            Self::PolicyHttpRoute | Self::GatewayHttpRoute => "httproutes",
            Self::GatewayGrpcRoute => "grpcroutes",
            Self::GatewayTlsRoute => "tlsroutes",
            Self::GatewayTcpRoute => "tcproutes",
            Self::RateLimitPolicy => "httplocalratelimitpolicies",
            Self::EgressNetwork => "egressnetworks",
        }
    }
}

impl fmt::Display for ReportedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}
