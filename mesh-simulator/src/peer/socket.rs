//! [`Socket`]: a connected socket of a peer.

use std::io::{self, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use mesh_runtime::tcp_info;
use mesh_simnet::Stream;
use socket2::SockRef;
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;

/// A socket of the simulated network or of the kernel. Dropping it closes it.
pub(crate) enum Socket {
    Simulated(Stream),
    Kernel(TcpStream),
}

impl Socket {
    /// A socket of the kernel that sends each piece at once.
    pub(crate) fn kernel(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self::Kernel(tcp))
    }

    pub(crate) fn poll_read(
        &self,
        buffer: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Simulated(stream) => {
                stream.poll_read_vectored(&mut [IoSliceMut::new(buffer)], cx)
            }
            Self::Kernel(tcp) => retry(|| {
                ready!(tcp.poll_read_ready(cx))?;
                Poll::Ready(tcp.try_read(buffer))
            }),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Simulated(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Kernel(tcp) => retry(|| {
                ready!(tcp.poll_write_ready(cx))?;
                Poll::Ready(tcp.try_write(bytes))
            }),
        }
    }

    /// Sends FIN.
    pub(crate) fn finish(&mut self) {
        match self {
            Self::Simulated(stream) => {
                let cx = &mut Context::from_waker(Waker::noop());
                // A simulated socket shuts down at once.
                let _done = Pin::new(stream).poll_shutdown(cx);
            }
            // The socket may have been reset already.
            Self::Kernel(tcp) => drop(SockRef::from(&*tcp).shutdown(Shutdown::Write)),
        }
    }

    /// Closing the socket sends RST.
    pub(crate) fn reset_on_close(&self) {
        match self {
            Self::Simulated(stream) => stream.reset_on_close(),
            // Fails for no connected socket.
            Self::Kernel(tcp) => drop(SockRef::from(tcp).set_linger(Some(Duration::ZERO))),
        }
    }

    /// Whether the peer has received everything that was written.
    pub(crate) fn is_acknowledged(&self) -> bool {
        match self {
            Self::Simulated(stream) => stream.is_acknowledged(),
            Self::Kernel(tcp) => tcp_info::is_acknowledged(tcp),
        }
    }
}

/// Repeats a call while the socket was not as ready as it seemed.
fn retry<T>(mut call: impl FnMut() -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    loop {
        match call() {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}
