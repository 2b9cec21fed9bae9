//! The listening sockets of the data threads.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use super::{SocketOptions, original_dst};

/// The default of `net.core.somaxconn` since Linux 5.4, which limits the backlog in any case, and
/// the backlog of Go's listeners. With Linkerd's 128, the kernel drops SYNs of a connection burst
/// that the application would have queued, and clients retransmit them after a second.
pub(crate) const DEFAULT_BACKLOG: u32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}{}", hint(source))]
pub(crate) struct ListenError {
    addr: SocketAddr,
    #[source]
    source: io::Error,
}

/// A listener of one data thread.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    options: SocketOptions,
    /// Whether the last accept failed. Failures are not logged again until one succeeds.
    is_failing: bool,
}

/// An accepted connection and its addresses, which are never IPv4-mapped.
#[derive(Debug)]
pub struct AcceptedConnection {
    pub tcp: TcpStream,
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
) -> Result<Vec<StdListener>, ListenError> {
    let error = |source| ListenError { addr, source };
    let mut listeners = vec![open(addr, backlog).map_err(error)?];
    // The kernel chooses port 0 for the first one.
    let addr = listeners[0].local_addr().map_err(error)?;
    for _ in 1..count {
        listeners.push(open(addr, backlog).map_err(error)?);
    }
    Ok(listeners)
}

fn open(addr: SocketAddr, backlog: u32) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() && !addr.ip().is_unspecified() {
        // `[::1]:4140` is used alongside `127.0.0.1:4140`; `[::]:4143` accepts both families.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
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

impl Listener {
    pub(crate) fn new(listener: StdListener, options: SocketOptions) -> io::Result<Self> {
        Ok(Self {
            tcp: TcpListener::from_std(listener)?,
            options,
            is_failing: false,
        })
    }

    /// Accepts the next connection. Logs a failure and waits for the connection after it.
    pub(crate) async fn accept(&mut self) -> AcceptedConnection {
        loop {
            match self.try_accept().await {
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

    async fn try_accept(&self) -> io::Result<AcceptedConnection> {
        let (tcp, peer) = self.tcp.accept().await?;
        configure(&tcp, self.options)?;
        let local = original_dst::canonical(tcp.local_addr()?);
        let original_dst = original_dst::get(&tcp, local, peer)?;
        Ok(AcceptedConnection {
            tcp,
            peer: original_dst::canonical(peer),
            local,
            original_dst,
        })
    }
}

/// Sets the options of accepted and opened connections.
pub(super) fn configure(tcp: &TcpStream, options: SocketOptions) -> io::Result<()> {
    let socket = SockRef::from(tcp);
    socket.set_tcp_nodelay(true)?;
    match options.keepalive {
        Some(idle) => socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))?,
        None => socket.set_keepalive(true)?,
    }
    if options.user_timeout.is_some() {
        socket.set_tcp_user_timeout(options.user_timeout)?;
    }
    Ok(())
}

fn is_exhaustion(error: &io::Error) -> bool {
    use nix::libc;
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
    )
}
