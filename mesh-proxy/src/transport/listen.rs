//! The listening sockets of the data threads.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Type};
use tokio::net::TcpListener;

use super::ends::Close;
use super::socket::{self, Socket};
use super::{SocketOptions, Stage, original_dst};

/// The default of `net.core.somaxconn` since Linux 5.4, which limits the backlog in any case, and
/// the backlog of Go's listeners. With Linkerd's 128, the kernel drops SYNs of a connection burst
/// that the application would have queued, and clients retransmit them after a second.
pub(crate) const DEFAULT_BACKLOG: u32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}{}", hint(source))]
pub(crate) struct ListenError {
    addr: SocketAddr,
    source: io::Error,
}

/// A bound socket that no runtime polls yet. It can move to another thread.
#[derive(Debug)]
pub(crate) enum ListeningSocket {
    Kernel(StdListener),
    #[cfg(feature = "simulation")]
    Simulated(mesh_simnet::Listener),
}

/// Accepts connections on the current runtime.
#[derive(Debug)]
pub(crate) enum Acceptor {
    Kernel(TcpListener),
    #[cfg(feature = "simulation")]
    Simulated(mesh_simnet::Listener),
}

/// A listener of one data thread.
#[derive(Debug)]
pub(crate) struct Listener {
    acceptor: Acceptor,
    options: SocketOptions,
    /// Whether the last accept failed. Failures are not logged again until one succeeds.
    is_failing: bool,
}

/// An accepted connection and its addresses, which are never IPv4-mapped.
#[derive(Debug)]
pub struct AcceptedConnection {
    pub tcp: Socket,
    pub peer: SocketAddr,
    /// The local address of the accepted socket.
    pub local: SocketAddr,
    pub original_dst: SocketAddr,
}

/// Opens `count` listeners of the same address, one for each data thread. The kernel distributes
/// connections over them. The first one listens before the others do, because the redirection
/// registers the listener that calls `listen` first on a port.
pub(crate) fn bind(
    addr: SocketAddr,
    backlog: u32,
    count: usize,
) -> Result<Vec<ListeningSocket>, ListenError> {
    let error = |source| ListenError { addr, source };
    let mut listeners = vec![open(addr, backlog).map_err(error)?];
    // The kernel chooses port 0 for the first one.
    let addr = listeners[0].local_addr().map_err(error)?;
    for _ in 1..count {
        listeners.push(open(addr, backlog).map_err(error)?);
    }
    Ok(listeners)
}

fn open(addr: SocketAddr, backlog: u32) -> io::Result<ListeningSocket> {
    let socket =
        socket2::Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() && !addr.ip().is_unspecified() {
        // `[::1]:4140` is used alongside `127.0.0.1:4140`; `[::]:4143` accepts both families.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(ListeningSocket::Kernel(socket.into()))
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => " (is another proxy running in this pod?)",
        io::ErrorKind::AddrNotAvailable => " (is this address family enabled in the pod?)",
        _ => "",
    }
}

/// The pause when the process has no file descriptors or memory left, so that connections can
/// close.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

impl ListeningSocket {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(listener) => listener.local_addr(),
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => Ok(listener.local_addr()),
        }
    }
}

impl Acceptor {
    /// Registers the socket with the current runtime.
    pub(crate) fn new(listener: ListeningSocket) -> io::Result<Self> {
        match listener {
            ListeningSocket::Kernel(listener) => TcpListener::from_std(listener).map(Self::Kernel),
            #[cfg(feature = "simulation")]
            ListeningSocket::Simulated(listener) => Ok(Self::Simulated(listener)),
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(listener) => listener.local_addr(),
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => Ok(listener.local_addr()),
        }
    }

    /// Waits for a connection to the listener's own address.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Kernel(listener) => Ok(listener.accept().await?.0.into()),
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => Ok(listener.accept().await.stream.into()),
        }
    }

    /// Waits for a connection that may have been redirected.
    async fn accept_redirected(&self, options: SocketOptions) -> io::Result<AcceptedConnection> {
        match self {
            Self::Kernel(listener) => {
                let (tcp, peer) = listener.accept().await?;
                socket::configure(&tcp, options)?;
                let local = original_dst::canonical(tcp.local_addr()?);
                let original_dst = original_dst::get(&tcp, local, peer)?;
                let peer = original_dst::canonical(peer);
                Ok(AcceptedConnection::new(tcp, peer, local, original_dst))
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => {
                let accepted = listener.accept().await;
                let tcp = Socket::from(accepted.stream);
                tcp.configure(options)?;
                let (peer, local) = (accepted.peer, accepted.local);
                Ok(AcceptedConnection::new(
                    tcp,
                    peer,
                    local,
                    accepted.original_dst,
                ))
            }
        }
    }
}

impl AcceptedConnection {
    /// A connection that is reset if it is dropped before it is served.
    pub fn new(
        tcp: impl Into<Socket>,
        peer: SocketAddr,
        local: SocketAddr,
        original_dst: SocketAddr,
    ) -> Self {
        let tcp = tcp.into();
        tcp.close_with(Stage::Unserved.close());
        Self {
            tcp,
            peer,
            local,
            original_dst,
        }
    }

    /// Closes the connection with FIN instead of a reset.
    pub(crate) fn finish(self) {
        self.tcp.close_with(Close::Fin);
    }
}

impl From<TcpListener> for Acceptor {
    fn from(listener: TcpListener) -> Self {
        Self::Kernel(listener)
    }
}

impl Listener {
    pub(crate) fn new(listener: ListeningSocket, options: SocketOptions) -> io::Result<Self> {
        Ok(Self {
            acceptor: Acceptor::new(listener)?,
            options,
            is_failing: false,
        })
    }

    /// Accepts the next connection. Logs a failure and waits for the connection after it.
    pub(crate) async fn accept(&mut self) -> AcceptedConnection {
        loop {
            match self.acceptor.accept_redirected(self.options).await {
                Ok(accepted) => {
                    self.is_failing = false;
                    return accepted;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(%error, "Server failed to accept connection");
                    }
                    if is_exhaustion(&error) {
                        tokio::time::sleep(EXHAUSTED_PAUSE).await;
                    }
                }
            }
        }
    }
}

fn is_exhaustion(error: &io::Error) -> bool {
    use nix::libc;
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}
