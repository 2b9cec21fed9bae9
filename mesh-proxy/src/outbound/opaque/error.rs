//! The errors of opaque connections.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::meta::Meta;

use crate::error::DialError;
use crate::telemetry::tcp::TcpRouteError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpaqueError {
    #[error("{parent}: no route for opaque connections")]
    NoRoute { parent: Meta },
    #[error("{parent}: no route for TLS server name {name}")]
    NoTlsRoute { parent: Meta, name: Arc<str> },
    #[error("{route}: the policy forbids this connection")]
    Forbidden { route: Meta },
    #[error("{route}: {message}")]
    Invalid { route: Meta, message: Arc<str> },
    #[error("{route}: no backend is available")]
    Unavailable { route: Meta },
    #[error("backend {backend} does not exist")]
    NoBackend { backend: Meta },
    #[error("backend {backend}: no endpoint could be reached in time")]
    FailFast { backend: Meta },
    #[error("cannot connect to endpoint {addr}")]
    Dial { addr: SocketAddr, source: DialError },
}

impl OpaqueError {
    /// Value of the `error` label of `outbound_tcp_errors_total`.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::FailFast { .. } => "failfast",
            Self::Unavailable { .. } => "loadshed",
            Self::Dial { .. } => "i/o",
            _ => "unexpected",
        }
    }

    pub(super) fn route_error(&self) -> TcpRouteError {
        match self {
            Self::Forbidden { .. } => TcpRouteError::Forbidden,
            Self::Invalid { .. } => TcpRouteError::InvalidPolicy,
            Self::NoBackend { .. } => TcpRouteError::InvalidBackend,
            _ => TcpRouteError::Unexpected,
        }
    }
}
