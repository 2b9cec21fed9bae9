//! Servers, authorization policies and authentications.

use std::sync::Arc;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::{DefaultPolicy, Network, Suffix};
use mesh_k8s::kinds::LabelSelector;
use mesh_k8s::select;

use super::{Labels, Name};

/// A port of the pods that match a selector.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub name: Name,
    /// Seconds since 1970; `None` for objects that are not from an API server.
    pub created: Option<i64>,
    /// `None` if the Server selects external workloads.
    pub pods: Option<Selector>,
    pub port: ServerPort,
    pub protocol: Protocol,
    /// The policy for clients that no authorization matches.
    pub access: DefaultPolicy,
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

/// A set of client identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTlsAuthentication {
    pub name: Name,
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
