//! One place a request can be sent to, as discovery describes it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use crate::{identity::Identity, labels::Labels};

/// An address with everything needed to dial it and to label its metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub addr: SocketAddr,
    /// How much it is to carry beside the others; 10000 is the normal weight.
    pub weight: u32,
    /// Labels of this address alone, without the `dst_` prefix.
    pub labels: Labels,
    /// Present when the peer runs a proxy of this mesh: mutual TLS is then required, never
    /// optional.
    pub tls: Option<TlsPeer>,
    pub hint: ProtocolHint,
    /// The port of the peer's proxy that accepts connections with a transport header.
    pub opaque_transport_port: Option<u16>,
    /// Replaces the authority of requests (gateways).
    pub authority_override: Option<Arc<str>>,
    pub http2: Option<Http2Params>,
}

impl Endpoint {
    /// An address of which nothing else is known.
    pub fn plain(addr: SocketAddr) -> Self {
        Self {
            addr,
            weight: NORMAL_WEIGHT,
            labels: Labels::default(),
            tls: None,
            hint: ProtocolHint::Unknown,
            opaque_transport_port: None,
            authority_override: None,
            http2: None,
        }
    }

    /// Whether a proxy listens for the endpoint's connections, of this mesh or of another.
    pub fn has_proxy(&self) -> bool {
        self.tls.is_some()
            || self.opaque_transport_port.is_some()
            || self.hint != ProtocolHint::Unknown
    }
}

/// What Linkerd's discovery gives to every endpoint.
const NORMAL_WEIGHT: u32 = 10_000;

/// Who must answer on a meshed endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsPeer {
    pub id: Identity,
    /// What is sent as SNI; the same as the identity for DNS-like identities.
    pub server_name: Arc<str>,
}

/// What discovery knows about the protocols an endpoint's proxy accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProtocolHint {
    #[default]
    Unknown,
    /// HTTP/1 may be carried as HTTP/2.
    Http2,
    /// The endpoint's port is opaque to its proxy.
    Opaque,
}

/// Settings of the HTTP/2 client towards one endpoint; `None` means the proxy's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Http2Params {
    pub connection_window: Option<u32>,
    pub stream_window: Option<u32>,
    pub adaptive_window: bool,
    pub keep_alive: Option<KeepAlive>,
    pub max_frame_size: Option<u32>,
    pub max_send_buf_size: Option<u32>,
    pub max_concurrent_reset_streams: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    pub interval: Duration,
    pub timeout: Duration,
    pub while_idle: bool,
}

/// A change to the endpoints of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointUpdate {
    /// Adds or replaces by socket address.
    Add {
        endpoints: Vec<Endpoint>,
        /// Labels common to the whole set, without the `dst_` prefix.
        set_labels: BTreeMap<String, String>,
    },
    Remove(Vec<SocketAddr>),
    /// The destination has no endpoints now; `exists` is false when there is no such destination.
    Empty {
        exists: bool,
    },
}
