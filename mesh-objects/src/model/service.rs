//! Services and EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use mesh_core::endpoint::TlsPeer;
use mesh_core::locality::Failover;
use mesh_core::ports::PortSet;
use mesh_core::resilience::{FailureAccrual, FailurePenalty, Timeouts};
use mesh_k8s::traffic_annotations::Retries;

use super::Name;

#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    pub name: Name,
    /// `None` for an object of a directory without one.
    pub uid: Option<Arc<str>>,
    pub external_name: bool,
    /// Empty for a headless Service.
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// The opaque ports of its annotation, with names resolved; `None` without annotation.
    pub opaque_ports: Option<PortSet>,
    /// `internalTrafficPolicy: Local`
    pub local_traffic: bool,
    /// `trafficDistribution: PreferSameNode`
    pub prefers_same_node: bool,
    /// The localities that clients prefer; `None` if hints of the EndpointSlices decide.
    pub failover: Option<Arc<Failover>>,
    pub traffic: TrafficSettings,
    /// The Services that have its endpoints; `None` for an ordinary Service.
    pub members: Option<Arc<Members>>,
}

/// The Services of the same namespace that a Service has its endpoints of: one of another cluster,
/// or the members of a federated Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The Services of the same cluster.
    pub local: Vec<Arc<str>>,
    pub remote: Vec<Member>,
}

/// A Service of another cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    pub cluster: Arc<str>,
    pub service: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: Option<Arc<str>>,
    pub number: u16,
    /// Lower case.
    pub app_protocol: Option<Arc<str>>,
}

/// The protocol of a Service's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProtocol {
    /// Clients detect the protocol, unless a GRPCRoute is attached.
    Unspecified,
    Http1,
    /// HTTP/2 without TLS, including gRPC.
    Http2,
    Opaque,
}

impl Service {
    /// Returns whether the Service has an address, and so traffic that a route can apply to.
    pub fn has_traffic(&self) -> bool {
        !self.external_name && !self.cluster_ips.is_empty()
    }

    pub fn has_port(&self, number: u16) -> bool {
        self.ports.iter().any(|port| port.number == number)
    }

    /// Returns the protocol of a port: its `appProtocol` if it is known, else opaque by the
    /// Service's annotation or, without one, by the default list.
    ///
    /// Both controllers use this function, because clients need the same protocol from both.
    pub fn protocol(&self, port: u16, default_opaque_ports: &PortSet) -> PortProtocol {
        let entry = self.ports.iter().find(|entry| entry.number == port);
        let opaque_ports = self.opaque_ports.as_ref().unwrap_or(default_opaque_ports);
        match entry.and_then(|entry| entry.app_protocol.as_deref()) {
            Some("http" | "kubernetes.io/ws") => PortProtocol::Http1,
            Some("http2" | "grpc" | "kubernetes.io/h2c") => PortProtocol::Http2,
            Some("https" | "tls" | "tcp" | "kubernetes.io/wss") => PortProtocol::Opaque,
            Some(other) if other.starts_with("linkerd.io/") => PortProtocol::Opaque,
            // Any other, such as `mysql` or `example.com/own`, says nothing about HTTP.
            Some(_) | None if opaque_ports.contains(port) => PortProtocol::Opaque,
            Some(_) | None => PortProtocol::Unspecified,
        }
    }
}

/// The settings of a Service's annotations for requests to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficSettings {
    pub timeouts: Timeouts,
    pub retries: Option<Retries>,
    pub failure_accrual: Option<FailureAccrual>,
    pub failure_penalty: Option<FailurePenalty>,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub name: Name,
    /// Its Service, in the same namespace.
    pub service: Option<Arc<str>>,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
    /// The Service of another cluster, if the slice is of its mirror.
    pub remote: Option<Arc<RemoteService>>,
}

/// A Service of another cluster, as the slices of its mirror describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteService {
    /// The domain name of the Service in its cluster.
    pub fqn: Arc<str>,
    /// The name of the cluster.
    pub cluster: Option<Arc<str>>,
    pub gateway: GatewayIdentity,
}

/// How clients authenticate the gateway of another cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum GatewayIdentity {
    /// It has no proxy.
    None,
    Peer(TlsPeer),
    /// The annotation is invalid, so that no client may connect.
    Invalid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    pub name: Option<Arc<str>>,
    pub number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    pub addresses: Vec<IpAddr>,
    pub ready: bool,
    /// Whether its pod is being deleted.
    pub terminating: bool,
    /// Whether its pod is being deleted and still serves, for a Service without a ready endpoint.
    pub serves_until_deleted: bool,
    pub target: SliceTarget,
    pub hostname: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
    pub zone_hints: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceTarget {
    Pod(Name),
    /// An ExternalWorkload.
    External(Name),
    /// A kind without records.
    Other,
    None,
}
