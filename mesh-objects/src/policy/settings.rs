//! The settings of the cluster that decide about policies, from the flags of the controller.

use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;

/// The settings of inbound and outbound policies.
#[derive(Clone, Debug)]
pub struct PolicySettings {
    pub cluster_domain: Arc<str>,
    pub control_namespace: Arc<str>,
    /// The trust domain, the suffix of every identity.
    pub identity_domain: Arc<str>,
    pub cluster_networks: Vec<IpNet>,
    /// The namespace whose EgressNetworks apply to clients of every namespace without one.
    pub global_egress_namespace: Arc<str>,
    pub default_policy: DefaultPolicy,
    pub probe_networks: Vec<IpNet>,
    /// The addresses of a pod's node that may send anything to its probed ports.
    pub node_probe_sources: Vec<NodeProbeSource>,
    pub default_opaque_ports: PortSet,
    pub allow_request_headers: bool,
}

/// The source addresses of a node's connections to its pods. The network plugin determines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProbeSource {
    /// The addresses in the pod's status.
    HostIps,
    /// The first address of each network in the node's specification.
    PodCidrs,
}

/// The name of a source of probes that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown source {0:?}: expected hostIPs or podCIDRs")]
pub struct UnknownProbeSource(String);

impl FromStr for NodeProbeSource {
    type Err = UnknownProbeSource;

    fn from_str(name: &str) -> Result<Self, UnknownProbeSource> {
        match name {
            "hostIPs" => Ok(Self::HostIps),
            "podCIDRs" => Ok(Self::PodCidrs),
            _ => Err(UnknownProbeSource(name.to_owned())),
        }
    }
}
