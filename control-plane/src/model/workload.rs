//! Pods, the nodes they run on, and the objects between a pod and its workload.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
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

    /// The container port behind a port of the host. In the host's network they are the same.
    pub fn behind_host_port(&self, host_port: u16) -> Option<u16> {
        let on_host = |port: &&ContainerPort| match port.host_port {
            Some(number) => number == host_port,
            None => self.host_network && port.number == host_port,
        };
        self.ports
            .iter()
            .filter(|port| port.tcp)
            .find(on_host)
            .map(|port| port.number)
    }
}
