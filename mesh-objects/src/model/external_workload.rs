//! Workloads outside of the cluster.

use std::net::IpAddr;
use std::sync::Arc;

use mesh_core::annotation::DEFAULT_INBOUND_PORT;
use mesh_core::endpoint::TlsPeer;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;

use super::{Labels, Name, OwnerRef};

/// A workload outside of the cluster, with the fields that its policy and its endpoints depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalWorkload {
    pub name: Name,
    pub labels: Labels,
    /// The owner; `None` if there are several.
    pub owner: Option<OwnerRef>,
    /// How clients authenticate it; `None` if its object has no valid identity.
    pub tls: Option<TlsPeer>,
    pub ips: Vec<IpAddr>,
    /// The zone of its label.
    pub zone: Option<Arc<str>>,
    /// The numbers of TCP ports.
    pub ports: Vec<u16>,
    /// The names of TCP ports.
    pub named_ports: Vec<(Arc<str>, u16)>,
    /// The opaque ports of its annotation; `None` without annotation.
    pub opaque_ports: Option<PortSet>,
    pub require_identity_ports: PortSet,
    pub default_policy: Option<DefaultPolicy>,
}

/// The name of the port where the workload's proxy accepts connections of its peers.
const PROXY_PORT: &str = "linkerd-proxy";

impl ExternalWorkload {
    /// Returns the inbound port of its proxy.
    pub fn proxy_port(&self) -> u16 {
        let named = self
            .named_ports
            .iter()
            .find(|(name, _)| **name == *PROXY_PORT);
        named.map_or(DEFAULT_INBOUND_PORT, |(_, number)| *number)
    }
}
