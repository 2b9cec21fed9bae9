//! The errors of inbound connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::MAX_ENFORCERS;
use super::policy::Unauthorized;
use crate::discovery::TooManyPorts;
use crate::outbound::NamedError;
use crate::tls::TlsError;
use crate::transport::connect::ConnectError;
use crate::transport::header::HeaderError;

/// The reason why a connection is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{0} is not an address of this pod")]
    ForeignAddress(SocketAddr),
    #[error("inbound connection targets the proxy's own port {0}")]
    OwnPort(u16),
    #[error("the proxy has no certificate yet")]
    NoCertificate,
    #[error("no TLS handshake began within {0:?}")]
    TlsTimedOut(Duration),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the TLS server name {0:?} is not this proxy's")]
    ServerNameMismatch(Option<Arc<str>>),
    #[error("the connection does not begin with HTTP")]
    NotHttp,
    #[error("direct connections must be mutually authenticated")]
    NotAuthenticated,
    #[error("direct connections must negotiate the transport header")]
    NoTransportHeader,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the transport header names {0:?}, but this proxy is not a multicluster gateway")]
    NoGateway(Arc<str>),
    #[error("the transport header names {0:?}, which this gateway does not serve")]
    GatewayDomain(Arc<str>),
    #[error("the client of this gateway is the gateway itself")]
    GatewayLoop,
    #[error("cannot reach the Service that a proxy of another cluster names")]
    Gateway(#[source] NamedError),
    #[error(transparent)]
    TooManyPorts(#[from] TooManyPorts),
    #[error(
        "connections of {MAX_ENFORCERS} kinds of clients, by port and identity, are open on this thread"
    )]
    TooManyKindsOfClients,
    #[error(transparent)]
    Unauthorized(#[from] Unauthorized),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the client's connection failed while its protocol was detected")]
    Detect(#[from] std::io::Error),
}

impl ConnectionError {
    /// Value of the `reason` label of `mesh_proxy_refused_total`; `None` if no limit is exceeded.
    pub(super) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::TooManyPorts(_) => Some("ports"),
            Self::TooManyKindsOfClients => Some("kinds_of_clients"),
            _ => None,
        }
    }

    /// Value of the `error` label of `inbound_tcp_errors_total`; `None` for connections that the
    /// authorization metrics count.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized(_) | Self::TooManyPorts(_) | Self::TooManyKindsOfClients => None,
            Self::TlsTimedOut(_) | Self::Tls(TlsError::TimedOut(_)) => {
                Some("tls detection timeout")
            }
            Self::NoGateway(_) | Self::GatewayDomain(_) => Some("gateway domain invalid"),
            Self::GatewayLoop => Some("gateway loop"),
            Self::Connect(_) | Self::Detect(_) => Some("i/o"),
            _ => Some("unexpected"),
        }
    }
}
