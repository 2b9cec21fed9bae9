//! The records of the cluster's objects, without Kubernetes structs and wire types.
//!
//! [`convert`](crate::convert) creates records. Texts of objects (annotations, port lists,
//! durations) are already parsed in records, so that code that uses them has no parse errors.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

mod egress_network;
mod external_slice;
mod external_workload;
mod listed;
mod pod;
mod policy;
mod profile;
mod reported;
mod route;
mod service;

pub use self::{
    egress_network::{EgressNetwork, TrafficPolicy},
    external_slice::{
        AddressFamily, EndpointPort, ExternalEndpoint, ExternalKind, ExternalObject, ExternalSlice,
        ExternalSpec, NamedPort, SelectedWorkload, SelectingService, TargetPort, TargetedPort,
        WrittenSlice,
    },
    external_workload::ExternalWorkload,
    listed::{
        ContainerError, Detail, ListedKind, ListedObject, PodDetail, PodPhase, ProfileDetail,
    },
    pod::{ContainerPort, Node, OwnedObject, OwnerRef, Phase, PodRecord, ProxyPorts, WorkloadRef},
    policy::{
        Authentication, AuthenticationRef, AuthorizationPolicy, AuthorizationTarget,
        ClientAuthentication, IdentitySet, MeshTlsAuthentication, NetworkAuthentication, Protocol,
        RateLimitPolicy, Selector, Server, ServerAuthorization, ServerPort, ServerSelector,
        WorkloadSelector,
    },
    profile::ServiceProfile,
    reported::{
        ReportedBackend, ReportedKind, ReportedObject, ReportedRoute, ReportedSpec, ReportedTarget,
    },
    route::{
        BackendKind, BackendRef, BackendRule, ConnectionRoute, GrpcRoute, HttpRoute, Mirror,
        ParentKind, ParentRef, Route, RouteId, Rule,
    },
    service::{
        GatewayIdentity, Member, Members, PortProtocol, RemoteService, Service, ServicePort, Slice,
        SliceEndpoint, SlicePort, SliceTarget, TrafficSettings,
    },
};

pub type Labels = BTreeMap<String, String>;

/// The name of an object within its kind. The namespace of a cluster-wide object is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The kind and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub name: Name,
}

/// Defines the kinds: each with its record, its API group, its `kind` in manifests, and the field
/// of the record with the name.
macro_rules! kinds {
    ($($kind:ident($record:ty): $group:literal, $name:literal, $($field:ident).+;)+) => {
        /// The kinds that the controllers read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($kind,)+
            /// A kind of the metrics API, which has a record of its own.
            Listed(ListedKind),
            /// A kind of the status controller, which has a record of its own.
            Reported(ReportedKind),
            /// A kind of the controller of EndpointSlices, which has a record of its own.
            External(ExternalKind),
        }

        /// The record of an object.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Object {
            $($kind(Arc<$record>),)+
            Listed(Arc<ListedObject>),
            Reported(Arc<ReportedObject>),
            External(Arc<ExternalObject>),
        }

        impl Kind {
            /// The kinds of the destination and policy controllers.
            pub const ALL: [Kind; [$($name),+].len()] = [$(Kind::$kind),+];

            /// Returns the kind of the destination and policy controllers with this `apiVersion`
            /// and `kind`. All versions of a kind are read in the same way.
            pub fn find(api_version: &str, kind: &str) -> Option<Self> {
                let group = api_version.split_once('/').map_or("", |(group, _)| group);
                let mut all = Self::ALL.into_iter();
                all.find(|known| known.group() == group && known.as_str() == kind)
            }

            /// Returns the API group; empty for the core group.
            pub fn group(self) -> &'static str {
                match self {
                    $(Self::$kind => $group,)+
                    Self::Listed(kind) => kind.group(),
                    Self::Reported(kind) => kind.group(),
                    Self::External(kind) => kind.group(),
                }
            }

            /// Returns the `kind` in manifests.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                    Self::Listed(kind) => kind.as_str(),
                    Self::Reported(kind) => kind.as_str(),
                    Self::External(kind) => kind.as_str(),
                }
            }
        }

        impl Object {
            pub fn key(&self) -> Key {
                let (kind, name) = match self {
                    $(Self::$kind(object) => (Kind::$kind, &object.$($field).+),)+
                    Self::Listed(object) => (Kind::Listed(object.kind), &object.name),
                    Self::Reported(object) => (Kind::Reported(object.kind), &object.name),
                    Self::External(object) => (Kind::External(object.kind), &object.name),
                };
                Key {
                    kind,
                    name: name.clone(),
                }
            }
        }
    };
}

kinds! {
    Pod(PodRecord): "", "Pod", name;
    Node(Node): "", "Node", name;
    ReplicaSet(OwnedObject): "apps", "ReplicaSet", name;
    Job(OwnedObject): "batch", "Job", name;
    Service(Service): "", "Service", name;
    EndpointSlice(Slice): "discovery.k8s.io", "EndpointSlice", name;
    ExternalWorkload(ExternalWorkload): "workload.linkerd.io", "ExternalWorkload", name;
    Server(Server): "policy.linkerd.io", "Server", name;
    ServerAuthorization(ServerAuthorization):
        "policy.linkerd.io", "ServerAuthorization", name;
    AuthorizationPolicy(AuthorizationPolicy): "policy.linkerd.io", "AuthorizationPolicy", name;
    MeshTlsAuthentication(MeshTlsAuthentication):
        "policy.linkerd.io", "MeshTLSAuthentication", name;
    NetworkAuthentication(NetworkAuthentication):
        "policy.linkerd.io", "NetworkAuthentication", name;
    RateLimitPolicy(RateLimitPolicy):
        "policy.linkerd.io", "HTTPLocalRateLimitPolicy", name;
    PolicyHttpRoute(HttpRoute): "policy.linkerd.io", "HTTPRoute", id.name;
    GatewayHttpRoute(HttpRoute): "gateway.networking.k8s.io", "HTTPRoute", id.name;
    GatewayGrpcRoute(GrpcRoute): "gateway.networking.k8s.io", "GRPCRoute", id.name;
    ServiceProfile(ServiceProfile): "linkerd.io", "ServiceProfile", name;
    GatewayTlsRoute(ConnectionRoute): "gateway.networking.k8s.io", "TLSRoute", id.name;
    GatewayTcpRoute(ConnectionRoute): "gateway.networking.k8s.io", "TCPRoute", id.name;
    EgressNetwork(EgressNetwork): "policy.linkerd.io", "EgressNetwork", name;
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}
