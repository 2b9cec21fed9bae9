//! [`Socket`], a connected TCP socket. All operations on its descriptor are methods here: the rest
//! of the proxy reads, writes and states how the connection ends.
//!
//! With the feature `simulation`, connections of a simulated process are ones of
//! [`mesh_simnet`]. It has the kernel's semantics, except that there is nothing to splice.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mesh_runtime::tcp_info;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::ends::Close;
use super::revocation::Admission;
use super::{SocketOptions, source_port};

/// A connected socket. Dropping it closes it.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    /// Whether the peer receives an RST when the socket is dropped. Atomic for [`Sync`], never
    /// contended.
    is_reset_on_close: AtomicBool,
    /// Present if the connection may end with the trust in its peer.
    admission: Option<Arc<Admission>>,
}

#[derive(Debug)]
enum Stream {
    Kernel(TcpStream),
    #[cfg(feature = "simulation")]
    Simulated(mesh_simnet::Stream),
}

/// The kernel's default idle time before keep-alive probes (`net.ipv4.tcp_keepalive_time`).
#[cfg(feature = "simulation")]
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(7200);

impl Socket {
    /// Opens a connection.
    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(process) = mesh_simnet::current() {
            return process.connect(addr).await.map(Self::from);
        }
        source_port::connect(addr).await.map(Self::from)
    }

    /// The socket of the kernel, for what only the kernel can do.
    pub(crate) fn kernel(&self) -> Option<&TcpStream> {
        match &self.stream {
            Stream::Kernel(tcp) => Some(tcp),
            #[cfg(feature = "simulation")]
            Stream::Simulated(_) => None,
        }
    }

    /// Whether [`super::splice`] can move the connection's bytes.
    pub(super) fn can_splice(&self) -> bool {
        self.kernel().is_some()
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.stream {
            Stream::Kernel(tcp) => tcp.local_addr(),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Ok(stream.local_addr()),
        }
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.stream {
            Stream::Kernel(tcp) => tcp.peer_addr(),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Ok(stream.peer_addr()),
        }
    }

    /// Sets the options of accepted and opened connections.
    pub(super) fn configure(&self, options: SocketOptions) -> io::Result<()> {
        match &self.stream {
            Stream::Kernel(tcp) => configure(tcp, options),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => {
                let keepalive = options.keepalive.unwrap_or(DEFAULT_KEEPALIVE);
                stream.set_timeouts(Some(keepalive), options.user_timeout);
                Ok(())
            }
        }
    }

    /// Limits the bytes in the send buffer that are not in flight (`TCP_NOTSENT_LOWAT`).
    pub(super) fn limit_unsent(&self, bytes: u32) {
        match &self.stream {
            Stream::Kernel(tcp) => {
                // Does not fail for TCP sockets, and the connection works without it.
                let _error = SockRef::from(tcp).set_tcp_notsent_lowat(bytes);
            }
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.limit_unsent(bytes as usize),
        }
    }

    /// Decides how the peer sees that the socket is dropped: with FIN, unless this has been called
    /// with another [`Close`]. RST discards what the peer has not acknowledged.
    pub(super) fn close_with(&self, close: Close) {
        self.is_reset_on_close.store(close == Close::Rst, Relaxed);
    }

    /// Reads and writes fail from the moment when the admission is revoked.
    pub(super) fn end_with(&mut self, admission: Arc<Admission>) {
        self.admission = Some(admission);
    }

    /// Whether the connection has ended with the trust in its peer.
    pub(super) fn is_revoked(&self) -> bool {
        let admission = self.admission.as_ref();
        admission.is_some_and(|it| it.is_revoked())
    }

    /// Has the task woken when the connection is revoked, for tasks that wait for something else.
    /// Fails if it has been.
    pub(super) fn watch_revocation(&self, cx: &Context<'_>) -> io::Result<()> {
        self.admission.as_ref().map_or(Ok(()), |it| it.wait(cx))
    }

    /// Fails if the connection is revoked.
    fn check_admission(&self) -> io::Result<()> {
        self.admission.as_ref().map_or(Ok(()), |it| it.check())
    }

    /// Has the task woken when the connection is revoked, if it has to wait for the socket.
    fn or_revoked<T>(&self, polled: Poll<io::Result<T>>, cx: &Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_pending() {
            self.watch_revocation(cx)?;
        }
        polled
    }

    /// Shuts both directions down. Does nothing if the connection has ended.
    pub(crate) fn shut_down(&self) {
        match &self.stream {
            Stream::Kernel(tcp) => {
                let _ended = SockRef::from(tcp).shutdown(Shutdown::Both);
            }
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.shut_down(),
        }
    }

    /// Whether the peer has acknowledged all bytes and the FIN that were written, or never will
    /// because the connection is over.
    pub(crate) fn is_acknowledged(&self) -> bool {
        match &self.stream {
            Stream::Kernel(tcp) => tcp_info::is_acknowledged(tcp),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.is_acknowledged(),
        }
    }

    /// Reads once into several slices.
    pub(super) fn poll_read_vectored(
        &self,
        into: &mut [IoSliceMut<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.check_admission()?;
        let read = match &self.stream {
            Stream::Kernel(tcp) => poll_read_kernel(tcp, into, cx),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.poll_read_vectored(into, cx),
        };
        self.or_revoked(read, cx)
    }

    /// Writes the bytes that the socket accepts immediately.
    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check_admission()?;
        match &self.stream {
            Stream::Kernel(tcp) => tcp.try_io(Interest::WRITABLE, || {
                (&*SockRef::from(tcp)).write_vectored(slices)
            }),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.try_write_vectored(slices),
        }
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

fn poll_read_kernel(
    tcp: &TcpStream,
    into: &mut [IoSliceMut<'_>],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_read_ready(cx))?;
        match read_some(tcp, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read),
        }
    }
}

/// Reads once. A read that does not fill the slices has emptied the socket: reporting `WouldBlock`
/// to tokio clears the readiness and saves a read that would fail.
fn read_some(tcp: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let capacity: usize = into.iter().map(|slice| slice.len()).sum();
    let mut read = None;
    let tried = tcp.try_io(Interest::READABLE, || {
        let n = (&*SockRef::from(tcp)).read_vectored(into)?;
        read = Some(n);
        match n {
            1.. if n < capacity => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(n),
        }
    });
    match read {
        Some(n) => Ok(n),
        None => tried,
    }
}

impl From<Stream> for Socket {
    fn from(stream: Stream) -> Self {
        Self {
            stream,
            is_reset_on_close: AtomicBool::new(false),
            admission: None,
        }
    }
}

impl From<TcpStream> for Socket {
    fn from(tcp: TcpStream) -> Self {
        Stream::Kernel(tcp).into()
    }
}

#[cfg(feature = "simulation")]
impl From<mesh_simnet::Stream> for Socket {
    fn from(stream: mesh_simnet::Stream) -> Self {
        Stream::Simulated(stream).into()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !*self.is_reset_on_close.get_mut() {
            return;
        }
        match &self.stream {
            Stream::Kernel(tcp) => {
                // Does not fail for TCP sockets, and the connection is closed anyway.
                let _unset = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
            }
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.reset_on_close(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_admission()?;
        let read = match &mut self.stream {
            Stream::Kernel(tcp) => Pin::new(tcp).poll_read(cx, buf),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        self.or_revoked(read, cx)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_admission()?;
        let written = match &mut self.stream {
            Stream::Kernel(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        self.or_revoked(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_admission()?;
        let written = match &mut self.stream {
            Stream::Kernel(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        };
        self.or_revoked(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Kernel(tcp) => tcp.is_write_vectored(),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Kernel(tcp) => Pin::new(tcp).poll_flush(cx),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Kernel(tcp) => Pin::new(tcp).poll_shutdown(cx),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
