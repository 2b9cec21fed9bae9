//! Copies opaque bytes in both directions between a client's and a server's connection.
//!
//! A direction reads into the thread's [`Scratch`] and writes the bytes immediately. Only bytes
//! that the sink does not accept are buffered, until it does. Between two plain sockets, a
//! direction that fills the scratch buffer switches to splice, and back when reads are small:
//! splice costs a third for bulk transfers and saves nothing otherwise. Between a plain socket and
//! a [`crate::transport::tls::RecordStream`], bytes pass through the record buffers instead.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use mesh_runtime::drain;

use self::direction::{Direction, DirectionError};
use super::{Io, Scratch};

mod direction;

/// Why copying failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("cannot read from the {side}")]
    Read { side: Side, source: io::Error },
    #[error("cannot write to the {side}")]
    Write { side: Side, source: io::Error },
}

/// The peer of one of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The peer of the accepted connection.
    Client,
    /// The peer of the opened connection.
    Server,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// While the proxy drains, a half-closed connection is closed after this long without a byte.
/// Abandoned half-closed connections would otherwise keep the pod until the grace period ends.
const DRAINING_HALF_CLOSED_IDLE: Duration = Duration::from_secs(5);

/// Copies until both directions have closed or one has failed.
///
/// A peer that closes its socket completely, as most do, discards what arrives afterwards, such as
/// a TLS close_notify, and its kernel resets the connection. That does not count as a failure once
/// the peer has ended its stream, or has received the end of the server's.
pub(crate) async fn duplex(
    client: Io,
    server: Io,
    scratch: &Scratch,
    drain: &drain::Watch,
) -> Result<(), CopyError> {
    let mut duplex = Duplex {
        client,
        server,
        to_server: Direction::new(),
        to_client: Direction::new(),
    };
    tokio::select! {
        biased;
        ended = std::future::poll_fn(|cx| duplex.poll(cx, scratch)) => return ended,
        () = drain.draining() => {}
    }
    duplex.finish_draining(scratch).await
}

struct Duplex {
    client: Io,
    server: Io,
    to_server: Direction,
    to_client: Direction,
}

impl Duplex {
    fn poll(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> Poll<Result<(), CopyError>> {
        let to_server = self
            .to_server
            .poll(&mut self.client, &mut self.server, scratch, cx)
            .map(|ended| {
                // The server has ended its stream: the client has its response, and the server
                // may have closed.
                let is_in_order = self.to_client.is_closed();
                self.to_server.end_in_order_if(is_in_order, ended)
            })
            .map_err(|error| error.into_copy_error(Side::Client, Side::Server));
        let to_client = self
            .to_client
            .poll(&mut self.server, &mut self.client, scratch, cx)
            .map(|ended| {
                // The client has ended its stream, and may have closed. A server that fails has not
                // completed its response.
                let is_write = matches!(ended, Err(DirectionError::Write(_)));
                let is_in_order = is_write && self.to_server.is_closed();
                self.to_client.end_in_order_if(is_in_order, ended)
            })
            .map_err(|error| error.into_copy_error(Side::Server, Side::Client));
        match (to_server, to_client) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn is_half_closed(&self) -> bool {
        self.to_server.is_closed() != self.to_client.is_closed()
    }

    /// Continues to copy, except when one half is closed and the other one idle.
    async fn finish_draining(&mut self, scratch: &Scratch) -> Result<(), CopyError> {
        loop {
            let before = (self.is_half_closed(), self.bytes_read());
            let copying = std::future::poll_fn(|cx| self.poll(cx, scratch));
            if let Ok(ended) = tokio::time::timeout(DRAINING_HALF_CLOSED_IDLE, copying).await {
                return ended;
            }
            if before == (true, self.bytes_read()) {
                return Ok(());
            }
        }
    }

    fn bytes_read(&self) -> u64 {
        self.to_server.bytes_read() + self.to_client.bytes_read()
    }
}

#[cfg(test)]
mod tests;
