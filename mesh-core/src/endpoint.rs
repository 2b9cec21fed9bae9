//! Endpoints: addresses that can receive traffic, as discovery describes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::identity::Identity;
use crate::labels::Labels;

/// The family of an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// IPv4, also as an IPv6 address that is mapped from it.
    V4,
    /// IPv6.
    V6,
}

impl AddressFamily {
    /// Returns the family of an address.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// An address with everything that is needed to connect to it and to label its metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address to connect to.
    pub addr: SocketAddr,
    /// Its share of the load relative to other endpoints; 10000 is the normal weight.
    pub weight: u32,
    /// Labels of this address only, without the `dst_` prefix.
    pub labels: Labels,
    /// Present when the peer runs a proxy of this mesh: mutual TLS is then required.
    pub tls: Option<TlsPeer>,
    /// The protocols that the endpoint's proxy accepts.
    pub hint: ProtocolHint,
    /// The port of the peer's proxy that accepts connections with a transport header.
    pub opaque_transport_port: Option<u16>,
    /// Replaces the authority of requests (gateways).
    pub authority_override: Option<Arc<str>>,
    /// Settings of HTTP/2 connections to the endpoint.
    pub http2: Option<Http2Params>,
}

impl Endpoint {
    /// Returns an endpoint with nothing known but its address.
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

    /// Whether the endpoint has a proxy, of this mesh or of another one.
    pub fn has_proxy(&self) -> bool {
        self.tls.is_some()
            || self.opaque_transport_port.is_some()
            || self.hint != ProtocolHint::Unknown
    }
}

/// The weight that Linkerd's discovery assigns to every endpoint.
const NORMAL_WEIGHT: u32 = 10_000;

/// The TLS parameters of a meshed endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsPeer {
    /// The identity that the server must have.
    pub id: Identity,
    /// The SNI to send; equal to the identity if that is a DNS name.
    pub server_name: Arc<str>,
}

/// The protocols that an endpoint's proxy accepts, as far as discovery knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProtocolHint {
    /// Unknown, or no proxy.
    #[default]
    Unknown,
    /// HTTP/1 may be carried as HTTP/2.
    Http2,
    /// The endpoint's port is opaque to its proxy.
    Opaque,
}

/// Settings of HTTP/2 connections to one endpoint; `None` means the proxy's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Http2Params {
    /// Flow-control window of the connection, in bytes.
    pub connection_window: Option<u32>,
    /// Flow-control window of each stream, in bytes.
    pub stream_window: Option<u32>,
    /// Whether the windows adapt to the bandwidth-delay product.
    pub adaptive_window: bool,
    /// Keep-alive with PING frames.
    pub keep_alive: Option<KeepAlive>,
    /// SETTINGS_MAX_FRAME_SIZE, in bytes.
    pub max_frame_size: Option<u32>,
    /// Bytes that are buffered for sending.
    pub max_send_buf_size: Option<u32>,
    /// Number of reset streams whose late frames are ignored.
    pub max_concurrent_reset_streams: Option<u32>,
}

/// Keep-alive of an HTTP/2 connection with PING frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    /// A PING is sent after this time without received frames.
    pub interval: Duration,
    /// The PING must be acknowledged within this time.
    pub timeout: Duration,
    /// Whether PINGs are sent while no stream is open.
    pub while_idle: bool,
}

/// A change to the endpoints of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointUpdate {
    /// Adds endpoints, or replaces those with the same address.
    Add {
        /// The added endpoints.
        endpoints: Vec<Endpoint>,
        /// Labels of all endpoints, without the `dst_` prefix.
        set_labels: BTreeMap<String, String>,
    },
    /// Removes the endpoints with these addresses.
    Remove(Vec<SocketAddr>),
    /// Removes all endpoints.
    Empty {
        /// False when the destination itself does not exist.
        exists: bool,
    },
}
