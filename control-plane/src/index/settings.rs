//! The settings of the cluster from the flags of the destination controller.

use std::sync::Arc;

use mesh_core::endpoint::{Http2Params, ProtocolHint};
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
    /// The name of the cluster, if it is another one than the clients'.
    pub cluster: Option<Arc<str>>,
}

impl DestinationSettings {
    /// Returns the hint for a port of a meshed endpoint.
    pub(super) fn hint(&self, opaque: bool) -> ProtocolHint {
        if opaque {
            ProtocolHint::Opaque
        } else if self.h2_upgrade {
            ProtocolHint::Http2
        } else {
            ProtocolHint::Unknown
        }
    }
}
