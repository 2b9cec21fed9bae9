//! Opaque bytes, both ways.
//!
//! A direction reads into the thread's [`Scratch`] and writes what it read at once. Only what the
//! other side does not take is kept, in a buffer that exists as long as that lasts. Between two
//! plain sockets, a direction that fills the scratch moves on to the kernel's splice and comes back
//! from it when the traffic is small again: splice costs a third for bulk and gains nothing for
//! chatter. Between a plain socket and a TLS connection whose records are ours, bytes go through
//! the records' own slots ([`crate::tls::RecordStream`]) and the scratch is not used.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use mesh_runtime::drain;

use self::direction::Direction;
use super::{Io, Scratch};

mod direction;

/// How the copying ended; the bytes are in the connections' counters.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("reading from the {0} failed")]
    Read(Side, #[source] io::Error),
    #[error("writing to the {0} failed")]
    Write(Side, #[source] io::Error),
}

/// Which of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that we accepted.
    Client,
    /// The one that we opened.
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

/// While the proxy drains, a connection of which one half is closed is given this long without a
/// byte before it is cut: half-closed connections that nobody uses any more would otherwise hold
/// the pod until the grace period ends.
const DRAINING_HALF_CLOSED_IDLE: Duration = Duration::from_secs(5);

/// Copies until both sides have ended, or one has failed.
pub async fn duplex(
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
            .map_err(|end| end.blame(Side::Client, Side::Server));
        let to_client = self
            .to_client
            .poll(&mut self.server, &mut self.client, scratch, cx)
            .map_err(|end| end.blame(Side::Server, Side::Client));
        match (to_server, to_client) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn is_half_closed(&self) -> bool {
        self.to_server.has_ended() != self.to_client.has_ended()
    }

    /// Waits for the end like before, but not for ever once one half is closed and the other is
    /// silent.
    async fn finish_draining(&mut self, scratch: &Scratch) -> Result<(), CopyError> {
        loop {
            let before = (self.is_half_closed(), self.moved());
            let copying = std::future::poll_fn(|cx| self.poll(cx, scratch));
            if let Ok(ended) = tokio::time::timeout(DRAINING_HALF_CLOSED_IDLE, copying).await {
                return ended;
            }
            if before == (true, self.moved()) {
                return Ok(());
            }
        }
    }

    fn moved(&self) -> u64 {
        self.to_server.moved() + self.to_client.moved()
    }
}

#[cfg(test)]
mod tests;
