//! Pods, the nodes they run on, and the objects between a pod and its workload.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use mesh_core::{policy::inbound::DefaultPolicy, ports::PortSet};

use super::{Labels, Name};

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    pub name: Name,
    pub labels: Labels,
    /// The one owner; none when there are several.
    pub owner: Option<OwnerRef>,
    pub service_account: Arc<str>,
    pub node: Option<Arc<str>>,
    pub phase: Phase,
    /// It is being deleted; its addresses may belong to another pod soon.
    pub terminating: bool,
    pub host_network: bool,
    pub ips: Vec<IpAddr>,
    pub host_ips: Vec<IpAddr>,
    pub ports: Vec<ContainerPort>,
    /// The namespace of its control plane, present when the pod is meshed.
    pub control_plane_ns: Option<Arc<str>>,
    pub pod_template_hash: Option<Arc<str>>,
    /// What its annotation makes opaque, names resolved; absent without annotation.
    pub opaque_ports: Option<PortSet>,
    pub skip_inbound_ports: PortSet,
    pub require_identity_ports: PortSet,
    pub default_policy: Option<DefaultPolicy>,
    pub proxy: Option<ProxyPorts>,
    /// Paths of HTTP probes by port.
    pub probes: BTreeMap<u16, BTreeSet<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    /// Every container ended for good.
    Ended,
}

/// A declared port. Several containers may use one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    pub name: Option<Arc<str>>,
    pub number: u16,
    pub host_port: Option<u16>,
    /// The only address of the host that the host port is on; absent when it is on every one.
    pub host_ip: Option<IpAddr>,
    pub tcp: bool,
}

/// Where the pod's proxy listens.
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

/// A ReplicaSet or Job: only its own owner matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub name: Name,
    pub owner: Option<OwnerRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: Name,
    pub zone: Option<Arc<str>>,
}

impl Workload {
    /// Every TCP port of that name.
    pub fn named_ports<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u16> + 'a {
        self.ports
            .iter()
            .filter(move |port| port.tcp && port.name.as_deref() == Some(name))
            .map(|port| port.number)
    }

    /// The container port behind an address of the host. In the host's network they are the same.
    pub fn behind_host_addr(&self, addr: SocketAddr) -> Option<u16> {
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

    /// The pod's own address of the family of `ip`, else its primary one.
    pub fn own_ip_beside(&self, ip: IpAddr) -> Option<IpAddr> {
        let same_family = |own: &&IpAddr| own.is_ipv4() == ip.is_ipv4();
        let found = self.ips.iter().find(same_family);
        found.or_else(|| self.ips.first()).copied()
    }
}
