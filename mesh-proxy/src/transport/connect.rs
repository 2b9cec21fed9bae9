//! Opening TCP connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::errno::Errno;

use super::socket::Socket;
use super::{Io, SocketOptions};

/// How long to wait after each shortage of the machine before the connection is tried again. The
/// client would receive the error of a pod's only application, which has no alternative.
const SHORTAGE_WAITS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
];

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
    Io { addr: SocketAddr, source: io::Error },
}

impl ConnectError {
    /// Whether the peer refused the connection.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Which process opens the connections of a task. There is one, except in a simulation.
#[derive(Clone)]
pub(crate) struct Origin {
    #[cfg(feature = "simulation")]
    process: Option<mesh_simnet::Process>,
}

impl Origin {
    /// The process of the calling task.
    pub(crate) fn current() -> Self {
        Self {
            #[cfg(feature = "simulation")]
            process: mesh_simnet::current(),
        }
    }

    /// Runs `opening` as this process, whichever task awaits it.
    #[cfg(not(feature = "simulation"))]
    pub(crate) fn run<F: Future>(&self, opening: F) -> F {
        opening
    }

    /// Runs `opening` as this process, whichever task awaits it.
    #[cfg(feature = "simulation")]
    pub(crate) fn run<F: Future>(&self, opening: F) -> impl Future<Output = F::Output> + use<F> {
        use futures_util::future::Either;
        match self.process.clone() {
            Some(process) => Either::Left(process.run(opening)),
            None => Either::Right(opening),
        }
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

async fn open(addr: SocketAddr, options: SocketOptions) -> io::Result<Socket> {
    let mut waits = SHORTAGE_WAITS.iter();
    let tcp = loop {
        match Socket::connect(addr).await {
            Err(error) if is_shortage(&error) => match waits.next() {
                // Not by a timer, so that the thread serves nothing else in between.
                Some(&Duration::ZERO) => {}
                Some(&wait) => tokio::time::sleep(wait).await,
                None => return Err(error),
            },
            result => break result?,
        }
    };
    tcp.configure(options)?;
    Ok(tcp)
}

/// Whether a connection failed by a shortage of this machine that passes: the peer was not asked.
fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::ENOBUFS | Errno::ENOMEM | Errno::EAGAIN | Errno::EINTR)
    )
}
