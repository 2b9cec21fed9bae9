//! The records of the cluster's objects, without Kubernetes structs and wire types.
//!
//! The [source](crate::source) creates records with [`convert`](crate::convert), the
//! [index](crate::index) stores them. Texts of objects (annotations, port lists, durations) are
//! already parsed in records, so that code that uses them has no parse errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

mod pod;
mod policy;
mod route;
mod service;

pub use self::{
    pod::{ContainerPort, Node, OwnedObject, OwnerRef, Phase, PodRecord, ProxyPorts},
    policy::{
        AuthenticationRef, AuthorizationPolicy, AuthorizationTarget, MeshTlsAuthentication,
        NetworkAuthentication, Protocol, Selector, Server, ServerPort,
    },
    route::{
        BackendKind, BackendRef, BackendRule, GrpcRoute, HttpRoute, ParentKind, ParentRef, Retries,
        Route, RouteId, Rule,
    },
    service::{
        PortProtocol, Service, ServicePort, Slice, SliceEndpoint, SlicePort, SliceTarget,
        TrafficSettings,
    },
};

pub type Labels = BTreeMap<String, String>;

/// The name of an object within its kind. The namespace of a cluster-wide object is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The kinds that the controllers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Pod,
    Node,
    ReplicaSet,
    Job,
    Service,
    EndpointSlice,
    Server,
    AuthorizationPolicy,
    MeshTlsAuthentication,
    NetworkAuthentication,
    /// `policy.linkerd.io`
    PolicyHttpRoute,
    /// `gateway.networking.k8s.io`
    GatewayHttpRoute,
    GatewayGrpcRoute,
}

/// The kind and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub name: Name,
}

/// The record of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Pod(Arc<PodRecord>),
    Node(Arc<Node>),
    ReplicaSet(Arc<OwnedObject>),
    Job(Arc<OwnedObject>),
    Service(Arc<Service>),
    EndpointSlice(Arc<Slice>),
    Server(Arc<Server>),
    AuthorizationPolicy(Arc<AuthorizationPolicy>),
    MeshTlsAuthentication(Arc<MeshTlsAuthentication>),
    NetworkAuthentication(Arc<NetworkAuthentication>),
    PolicyHttpRoute(Arc<HttpRoute>),
    GatewayHttpRoute(Arc<HttpRoute>),
    GatewayGrpcRoute(Arc<GrpcRoute>),
}

impl Name {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Kind {
    /// Returns the `kind` in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::ReplicaSet => "ReplicaSet",
            Self::Job => "Job",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Server => "Server",
            Self::AuthorizationPolicy => "AuthorizationPolicy",
            Self::MeshTlsAuthentication => "MeshTLSAuthentication",
            Self::NetworkAuthentication => "NetworkAuthentication",
            Self::PolicyHttpRoute | Self::GatewayHttpRoute => "HTTPRoute",
            Self::GatewayGrpcRoute => "GRPCRoute",
        }
    }

    /// Returns the API group; empty for the core group.
    pub fn group(self) -> &'static str {
        match self {
            Self::Pod | Self::Node | Self::Service => "",
            Self::ReplicaSet => "apps",
            Self::Job => "batch",
            Self::EndpointSlice => "discovery.k8s.io",
            Self::Server
            | Self::AuthorizationPolicy
            | Self::MeshTlsAuthentication
            | Self::NetworkAuthentication
            | Self::PolicyHttpRoute => "policy.linkerd.io",
            Self::GatewayHttpRoute | Self::GatewayGrpcRoute => "gateway.networking.k8s.io",
        }
    }

    pub const ALL: [Self; 13] = [
        Self::Pod,
        Self::Node,
        Self::ReplicaSet,
        Self::Job,
        Self::Service,
        Self::EndpointSlice,
        Self::Server,
        Self::AuthorizationPolicy,
        Self::MeshTlsAuthentication,
        Self::NetworkAuthentication,
        Self::PolicyHttpRoute,
        Self::GatewayHttpRoute,
        Self::GatewayGrpcRoute,
    ];
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

impl Object {
    pub fn key(&self) -> Key {
        let (kind, name) = match self {
            Self::Pod(object) => (Kind::Pod, &object.name),
            Self::Node(object) => (Kind::Node, &object.name),
            Self::ReplicaSet(object) => (Kind::ReplicaSet, &object.name),
            Self::Job(object) => (Kind::Job, &object.name),
            Self::Service(object) => (Kind::Service, &object.name),
            Self::EndpointSlice(object) => (Kind::EndpointSlice, &object.name),
            Self::Server(object) => (Kind::Server, &object.name),
            Self::AuthorizationPolicy(object) => (Kind::AuthorizationPolicy, &object.name),
            Self::MeshTlsAuthentication(object) => (Kind::MeshTlsAuthentication, &object.name),
            Self::NetworkAuthentication(object) => (Kind::NetworkAuthentication, &object.name),
            Self::PolicyHttpRoute(object) => (Kind::PolicyHttpRoute, &object.id.name),
            Self::GatewayHttpRoute(object) => (Kind::GatewayHttpRoute, &object.id.name),
            Self::GatewayGrpcRoute(object) => (Kind::GatewayGrpcRoute, &object.id.name),
        };
        Key {
            kind,
            name: name.clone(),
        }
    }
}
