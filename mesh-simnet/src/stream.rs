//! [`Stream`]: one socket of a connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rand::RngExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

use crate::connection::{Options, Side};
use crate::network::Network;
use crate::usage;

/// One socket of a connection. Dropping it closes it.
pub struct Stream {
    network: Network,
    connection: u64,
    side: Side,
}

impl Stream {
    pub(crate) fn new(network: Network, connection: u64, side: Side) -> Self {
        Self {
            network,
            connection,
            side,
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        let side = self.side;
        self.network
            .with(self.connection, |connection, _| connection.local_addr(side))
    }

    pub fn peer_addr(&self) -> SocketAddr {
        let side = self.side.peer();
        self.network
            .with(self.connection, |connection, _| connection.local_addr(side))
    }

    /// SO_KEEPALIVE with TCP_KEEPIDLE, and TCP_USER_TIMEOUT.
    pub fn set_timeouts(&self, keepalive: Option<Duration>, user_timeout: Option<Duration>) {
        let options = Options {
            keepalive,
            user_timeout,
        };
        self.network.with(self.connection, |connection, _| {
            connection.set_options(self.side, options);
        });
    }

    /// TCP_NOTSENT_LOWAT: limits the bytes that the socket accepts and has not sent.
    pub fn limit_unsent(&self, bytes: usize) {
        self.network.with(self.connection, |connection, _| {
            connection.set_send_capacity(self.side, bytes);
        });
    }

    /// SO_LINGER of zero seconds.
    pub fn reset_on_close(&self) {
        self.network.with(self.connection, |connection, _| {
            connection.set_resets_on_close(self.side);
        });
    }

    /// Shuts both directions down.
    pub fn shut_down(&self) {
        self.network.with(self.connection, |connection, _| {
            connection.shut_down(self.side);
        });
    }

    /// Whether the peer has received all bytes and the FIN that were written, or never will.
    pub fn is_acknowledged(&self) -> bool {
        self.network.with(self.connection, |connection, _| {
            connection.is_acknowledged(self.side)
        })
    }

    /// Reads once into several slices.
    pub fn poll_read_vectored(
        &self,
        slices: &mut [IoSliceMut<'_>],
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(coop::poll_proceed(cx));
        let read = self.network.with(self.connection, |connection, _| {
            connection.poll_read(self.side, slices, cx)
        });
        if let Poll::Ready(read) = &read {
            budget.made_progress();
            usage::note_read(read.as_ref().copied().unwrap_or_default());
        }
        read
    }

    /// Writes the bytes that the socket accepts immediately.
    ///
    /// # Errors
    ///
    /// As `write` of a socket that does not block.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.network.with(self.connection, |connection, _| {
            connection.try_write(self.side, slices)
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let unfilled = buf.initialize_unfilled();
        let n = ready!(self.poll_read_vectored(&mut [IoSliceMut::new(unfilled)], cx))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(coop::poll_proceed(cx));
        let written = self.network.with(self.connection, |connection, _| {
            connection.poll_write(self.side, slices, cx)
        });
        if written.is_ready() {
            budget.made_progress();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.with(self.connection, |connection, _| {
            connection.finish(self.side);
        });
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.network.with(self.connection, |connection, random| {
            let unsent = connection.deliverable(self.side);
            let in_flight = random.random_range(0..=unsent);
            connection.close(self.side, in_flight);
        });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("connection", &self.connection)
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}
