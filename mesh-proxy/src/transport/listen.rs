//! The listening sockets of the data threads, and accepting on them.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use super::original_dst;
use crate::config::SocketOptions;

/// Linux's own limit since 5.4, which the kernel applies in any case (`net.core.somaxconn`), and
/// what Go's listeners have. With Linkerd's 128, a burst of connections that the application would
/// have queued is dropped in front of the proxy, and tried again by the client after a second.
pub const DEFAULT_BACKLOG: u32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}{}", hint(source))]
pub struct ListenError {
    addr: SocketAddr,
    #[source]
    source: io::Error,
}

/// A listener of one data thread.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    options: SocketOptions,
    /// What this thread accepted last failed; the next failure of the same kind is not logged again
    /// until one succeeds.
    failing: bool,
}

/// A connection and who wanted to go where. Addresses are canonical: no IPv4 in IPv6 form.
#[derive(Debug)]
pub struct Accepted {
    pub tcp: TcpStream,
    pub peer: SocketAddr,
    /// The address that accepted it.
    pub local: SocketAddr,
    pub original_dst: SocketAddr,
}

/// Opens `count` listeners of the same address, one for each data thread: the kernel spreads
/// connections over them. The first one is listening when this returns, and was before the others
/// were: redirection registers a pod's listener by the first `listen` of its port.
pub fn bind(addr: SocketAddr, backlog: u32, count: usize) -> Result<Vec<StdListener>, ListenError> {
    let error = |source| ListenError { addr, source };
    let mut listeners = vec![open(addr, backlog).map_err(error)?];
    // Port 0 is chosen once, by the first.
    let addr = listeners[0].local_addr().map_err(error)?;
    for _ in 1..count {
        listeners.push(open(addr, backlog).map_err(error)?);
    }
    Ok(listeners)
}

fn open(addr: SocketAddr, backlog: u32) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() && !addr.ip().is_unspecified() {
        // `[::1]:4140` stands beside `127.0.0.1:4140`; `[::]:4143` serves both.
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

/// How long accepting pauses when the process has no file descriptor or memory left: long enough
/// for connections to end, short enough not to be noticed.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

impl Listener {
    pub fn new(listener: StdListener, options: SocketOptions) -> io::Result<Self> {
        Ok(Self {
            tcp: TcpListener::from_std(listener)?,
            options,
            failing: false,
        })
    }

    /// The next connection. Never gives up: what goes wrong with one connection is logged and the
    /// next one is waited for.
    pub async fn accept(&mut self) -> Accepted {
        loop {
            match self.try_accept().await {
                Ok(accepted) => {
                    self.failing = false;
                    return accepted;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "Server failed to accept connection");
                    }
                    if is_exhaustion(&error) {
                        tokio::time::sleep(EXHAUSTED_PAUSE).await;
                    }
                }
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Accepted> {
        let (tcp, peer) = self.tcp.accept().await?;
        configure(&tcp, self.options)?;
        let local = original_dst::canonical(tcp.local_addr()?);
        let original_dst = original_dst::of(&tcp, local, peer)?;
        Ok(Accepted {
            tcp,
            peer: original_dst::canonical(peer),
            local,
            original_dst,
        })
    }
}

/// What every socket of the proxy gets, accepted or dialled.
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
