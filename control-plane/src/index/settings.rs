//! The settings of the cluster from the flags of a controller.

use std::sync::Arc;

use ipnet::IpNet;
use mesh_core::endpoint::Http2Params;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;

/// The settings of endpoints and profiles.
#[derive(Clone, Debug)]
pub struct DestinationSettings {
    pub cluster_domain: Arc<str>,
    pub control_namespace: Arc<str>,
    /// Without it, no endpoint has an identity.
    pub trust_domain: Option<Arc<str>>,
    pub default_opaque_ports: PortSet,
    /// Whether HTTP/1 is carried as HTTP/2 between proxies.
    pub h2_upgrade: bool,
    /// Whether every meshed endpoint accepts connections on its proxy's port with a transport
    /// header; otherwise only opaque ones do.
    pub transport_header: bool,
    /// Whether endpoints have IPv6 addresses, which are preferred over the pod's IPv4 address.
    pub ipv6: bool,
    pub meshed_http2_params: Option<Http2Params>,
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NodeProbeSource {
    /// The addresses in the pod's status.
    #[value(name = "hostIPs")]
    HostIps,
    /// The first address of each network in the node's specification.
    #[value(name = "podCIDRs")]
    PodCidrs,
}
