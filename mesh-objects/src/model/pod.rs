//! Pods, nodes, ReplicaSets and Jobs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh_core::labels::workload_label;
use mesh_core::policy::inbound::{DefaultPolicy, PortProbes};
use mesh_core::ports::PortSet;

use super::{Labels, Name};

/// A workload that has policies: the pod or machine of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WorkloadRef {
    Pod(Name),
    /// An ExternalWorkload.
    External(Name),
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodRecord {
    pub name: Name,
    /// `None` for an object of a directory without one.
    pub uid: Option<Arc<str>>,
    pub labels: Labels,
    /// The owner; `None` if there are several.
    pub owner: Option<OwnerRef>,
    pub service_account: Arc<str>,
    pub node: Option<Arc<str>>,
    pub phase: Phase,
    /// Whether it is being deleted; its addresses may soon belong to another pod.
    pub terminating: bool,
    pub host_network: bool,
    pub ips: Vec<IpAddr>,
    pub host_ips: Vec<IpAddr>,
    pub ports: Vec<ContainerPort>,
    /// The namespace of its control plane, if the pod is meshed.
    pub control_plane_ns: Option<Arc<str>>,
    pub pod_template_hash: Option<Arc<str>>,
    /// The opaque ports of its annotation, with names resolved; `None` without annotation.
    pub opaque_ports: Option<PortSet>,
    pub skip_inbound_ports: PortSet,
    pub require_identity_ports: PortSet,
    pub default_policy: Option<DefaultPolicy>,
    pub proxy: Option<ProxyPorts>,
    /// The kubelet's requests by port.
    pub probes: BTreeMap<u16, PortProbes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    /// Succeeded or failed.
    Terminated,
}

/// A declared port. Several containers may use one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    pub name: Option<Arc<str>>,
    pub number: u16,
    pub host_port: Option<u16>,
    /// The host address of the host port; `None` for all addresses.
    pub host_ip: Option<IpAddr>,
    pub tcp: bool,
}

/// The ports of the pod's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyPorts {
    pub inbound: u16,
    pub control: u16,
    pub admin: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    /// Lower case.
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

impl WorkloadRef {
    pub fn name(&self) -> &Name {
        match self {
            Self::Pod(name) | Self::External(name) => name,
        }
    }
}

impl OwnerRef {
    /// Returns the label that has the name of the workload in metrics.
    pub fn label(&self) -> &str {
        workload_label(&self.kind)
    }
}

/// The owner of a ReplicaSet or Job; its other fields are not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    pub name: Name,
    pub owner: Option<OwnerRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: Name,
    pub zone: Option<Arc<str>>,
    pub region: Option<Arc<str>>,
    /// The first addresses of the networks of its pods, which are its own where it routes them
    /// itself.
    pub pod_gateways: Vec<IpAddr>,
}

impl PodRecord {
    /// Returns every TCP port with this name.
    pub fn named_ports<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u16> + 'a {
        self.ports
            .iter()
            .filter(move |port| port.tcp && port.name.as_deref() == Some(name))
            .map(|port| port.number)
    }

    /// Returns the container port of a host address. In the host network they are the same.
    pub fn container_port_at_host(&self, addr: SocketAddr) -> Option<u16> {
        if !self.host_ips.contains(&addr.ip()) {
            return None;
        }
        let on_host = |port: &&ContainerPort| {
            if self.host_network {
                return port.number == addr.port();
            }
            port.host_port == Some(addr.port()) && port.host_ip.is_none_or(|ip| ip == addr.ip())
        };
        self.ports
            .iter()
            .filter(|port| port.tcp)
            .find(on_host)
            .map(|port| port.number)
    }

    /// Returns the pod's address of the same family as `ip`, else its primary one.
    pub fn ip_of_family(&self, ip: IpAddr) -> Option<IpAddr> {
        let same_family = |own: &&IpAddr| own.is_ipv4() == ip.is_ipv4();
        let found = self.ips.iter().find(same_family);
        found.or_else(|| self.ips.first()).copied()
    }
}
