//! Servers, the authorizations of their clients, and rate limits.

use std::fmt;
use std::sync::Arc;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::{DefaultPolicy, Network, Suffix};
use mesh_k8s::kinds::LabelSelector;
use mesh_k8s::select;

use super::{Labels, Name};

/// A port of the workloads that match a selector.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub name: Name,
    pub labels: Labels,
    /// Seconds since 1970; `None` for objects that are not from an API server.
    pub created: Option<i64>,
    pub workloads: WorkloadSelector,
    pub port: ServerPort,
    pub protocol: Protocol,
    /// The policy for clients that no authorization matches.
    pub access: DefaultPolicy,
}

/// The workloads of a Server, which are of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadSelector {
    Pods(Selector),
    ExternalWorkloads(Selector),
}

/// Selects objects by their labels; by default all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector(LabelSelector);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerPort {
    Number(u16),
    Name(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Detect,
    Http1,
    Http2,
    Grpc,
    Opaque,
    Tls,
}

/// Authorizes clients to connect to Servers.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerAuthorization {
    pub name: Name,
    pub servers: ServerSelector,
    /// Empty for the networks of the cluster.
    pub networks: Vec<Network>,
    pub authentication: ClientAuthentication,
}

/// The Servers of a ServerAuthorization.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerSelector {
    Name(Arc<str>),
    Labels(Selector),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    Unauthenticated,
    /// TLS of the mesh, with or without an identity.
    Tls,
    Identities(IdentitySet),
}

/// Authorizes clients that satisfy all required authentications to connect to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationPolicy {
    pub name: Name,
    pub target: AuthorizationTarget,
    pub required: Vec<AuthenticationRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationTarget {
    Server(Arc<str>),
    /// All Servers of the policy's namespace.
    Namespace,
    PolicyHttpRoute(Arc<str>),
    GatewayHttpRoute(Arc<str>),
    GatewayGrpcRoute(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationRef {
    MeshTls(Name),
    Network(Name),
    ServiceAccount(Name),
}

/// What an [`AuthenticationRef`] refers to.
#[derive(Clone, Copy, Debug)]
pub enum Authentication<'a> {
    MeshTls(&'a MeshTlsAuthentication),
    Network(&'a NetworkAuthentication),
    /// The name of a ServiceAccount.
    ServiceAccount(&'a Name),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTlsAuthentication {
    pub name: Name,
    pub clients: IdentitySet,
}

/// A set of client identities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentitySet {
    pub identities: Vec<Identity>,
    pub suffixes: Vec<Suffix>,
    pub service_accounts: Vec<Name>,
    /// All ServiceAccounts of these namespaces.
    pub namespaces: Vec<Arc<str>>,
}

/// A set of client addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAuthentication {
    pub name: Name,
    pub networks: Vec<Network>,
}

/// The rates of requests that each proxy of a Server accepts, in requests per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitPolicy {
    pub name: Name,
    /// Seconds since 1970; `None` for objects that are not from an API server.
    pub created: Option<i64>,
    /// The name of the Server, which is in the same namespace.
    pub server: Arc<str>,
    pub total: Option<u32>,
    pub identity: Option<u32>,
    /// ServiceAccounts that share a rate.
    pub overrides: Vec<(Vec<Name>, u32)>,
}

impl fmt::Display for ServerPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Protocol {
    /// Writes the `proxyProtocol` of a Server.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detect => "unknown",
            Self::Http1 => "HTTP/1",
            Self::Http2 => "HTTP/2",
            Self::Grpc => "gRPC",
            Self::Opaque => "opaque",
            Self::Tls => "TLS",
        })
    }
}

impl From<LabelSelector> for Selector {
    fn from(selector: LabelSelector) -> Self {
        Self(selector)
    }
}

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        select::matches(&self.0, Some(labels))
    }
}

impl IdentitySet {
    pub fn is_empty(&self) -> bool {
        self.identities.is_empty()
            && self.suffixes.is_empty()
            && self.service_accounts.is_empty()
            && self.namespaces.is_empty()
    }
}

impl ServerSelector {
    /// Returns whether it selects a Server of its own namespace.
    pub fn matches(&self, server: &Server) -> bool {
        match self {
            Self::Name(name) => *name == server.name.name,
            Self::Labels(selector) => selector.matches(&server.labels),
        }
    }
}
