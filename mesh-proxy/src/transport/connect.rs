//! Opening TCP connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use super::listen::configure;
use super::{Io, SocketOptions};

/// How the proxy opens connections of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectOptions {
    /// Limits TCP, TLS and transport header together.
    pub(crate) timeout: Duration,
    pub(crate) socket: SocketOptions,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("connection to {addr} timed out after {limit:?}")]
    TimedOut { addr: SocketAddr, limit: Duration },
    #[error("cannot connect to {addr}")]
    Io {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
}

impl ConnectError {
    /// Whether the peer refused the connection.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Opens a TCP connection to `addr`. The caller attaches counters.
pub(crate) async fn dial(addr: SocketAddr, options: &ConnectOptions) -> Result<Io, ConnectError> {
    match tokio::time::timeout(options.timeout, open(addr, options.socket)).await {
        Ok(Ok(tcp)) => Ok(Io::plain(tcp)),
        Ok(Err(source)) => Err(ConnectError::Io { addr, source }),
        Err(_elapsed) => Err(ConnectError::TimedOut {
            addr,
            limit: options.timeout,
        }),
    }
}

async fn open(addr: SocketAddr, options: SocketOptions) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(addr).await?;
    configure(&tcp, options)?;
    Ok(tcp)
}
