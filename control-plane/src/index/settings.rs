//! What the flags of a controller say about the cluster.

use std::sync::Arc;

use ipnet::IpNet;
use mesh_core::{endpoint::Http2Params, policy::inbound::DefaultPolicy, ports::PortSet};

/// For endpoints and profiles.
#[derive(Clone, Debug)]
pub struct DestinationSettings {
    pub cluster_domain: Arc<str>,
    pub control_namespace: Arc<str>,
    /// Without one, no endpoint has an identity.
    pub trust_domain: Option<Arc<str>>,
    pub default_opaque_ports: PortSet,
    /// HTTP/1 may be carried as HTTP/2 between proxies.
    pub h2_upgrade: bool,
    /// Every meshed endpoint takes connections on its proxy's port with a transport header;
    /// otherwise opaque ones only.
    pub transport_header: bool,
    /// Endpoints may have IPv6 addresses, which then come before a pod's IPv4 address.
    pub ipv6: bool,
    pub meshed_http2_params: Option<Http2Params>,
}

/// For inbound and outbound policies.
#[derive(Clone, Debug)]
pub struct PolicySettings {
    pub cluster_domain: Arc<str>,
    pub control_namespace: Arc<str>,
    /// The domain at the end of every identity.
    pub identity_domain: Arc<str>,
    pub cluster_networks: Vec<IpNet>,
    pub default_policy: DefaultPolicy,
    pub probe_networks: Vec<IpNet>,
    pub default_opaque_ports: PortSet,
    pub allow_request_headers: bool,
}
