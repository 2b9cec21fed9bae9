//! Copies opaque bytes in both directions between a client's and a server's connection.
//!
//! A direction reads into the thread's [`Scratch`] and writes the bytes immediately. Only bytes
//! that the sink does not accept are buffered, until it does. Between two plain sockets, a
//! direction that fills the scratch buffer switches to splice, and back when reads are small:
//! splice costs a third for bulk transfers and saves nothing otherwise. Between a plain socket and
//! a [`crate::transport::tls::RecordStream`], bytes pass through the record buffers instead.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use mesh_planted::Bug;
use mesh_runtime::drain;
use tokio::io::AsyncWrite as _;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use self::direction::{Direction, DirectionError};
use super::ends::{Cause, ConnectionEnd, Side};
use super::reset::{self, RESET_TIME};
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

/// While the proxy drains, a half-closed connection is closed after this long without a byte.
/// Abandoned half-closed connections would otherwise keep the pod until the grace period ends.
const DRAINING_HALF_CLOSED_IDLE: Duration = Duration::from_secs(5);

/// Copies until both directions have closed, one has failed, or the connection has been half-closed
/// for `half_closed_idle` without a byte.
///
/// How an end is passed on is the rule of [`super::ends`]. Dropping the future resets both peers,
/// so that neither takes the end of the tunnel for the end of the other's stream.
pub(crate) async fn duplex(
    client: Io,
    server: Io,
    scratch: &Scratch,
    half_closed_idle: Duration,
    drain: &drain::Watch,
) -> Result<(), CopyError> {
    let mut duplex = Duplex {
        client,
        server,
        to_server: Direction::new(),
        to_client: Direction::new(),
        ended_by: Cause::Proxy,
    };
    let copied = {
        let mut draining = pin!(drain.draining());
        let mut timer = HalfClosedTimer::new(half_closed_idle);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(ended) = duplex.poll(cx, scratch) {
                return Poll::Ready(Ok(ended));
            }
            if timer.limit > DRAINING_HALF_CLOSED_IDLE && draining.as_mut().poll(cx).is_ready() {
                timer.limit = DRAINING_HALF_CLOSED_IDLE;
            }
            if !duplex.is_half_closed() {
                return Poll::Pending;
            }
            timer.poll(cx, duplex.bytes_read()).map(Err)
        })
        .await
    };
    match copied {
        Ok(Ok(())) => {
            duplex.ended_by = Cause::Finished;
            Ok(())
        }
        Ok(Err(failure)) => duplex.fail(failure, scratch).await,
        Err(HalfClosedTooLong) => {
            tracing::info!(limit = ?half_closed_idle, "Half-closed connection closed: no byte in time");
            Ok(())
        }
    }
}

struct Duplex {
    client: Io,
    server: Io,
    to_server: Direction,
    to_client: Direction,
    /// What the destructor passes on: unless another end comes first, this proxy's.
    ended_by: Cause,
}

/// An operation on one of the connections has failed.
struct Failure {
    side: Side,
    error: DirectionError,
}

/// Ready when no byte has been read within a limit.
struct HalfClosedTimer {
    limit: Duration,
    /// Made when the connection is half-closed.
    sleep: Option<Pin<Box<Sleep>>>,
    bytes_read: u64,
    last_read: Instant,
}

struct HalfClosedTooLong;

impl Duplex {
    fn poll(&mut self, cx: &mut Context<'_>, scratch: &Scratch) -> Poll<Result<(), Failure>> {
        let to_server = self
            .to_server
            .poll(&mut self.client, &mut self.server, scratch, cx)
            .map_err(|error| Failure::new(error, Side::Client));
        let to_client = self
            .to_client
            .poll(&mut self.server, &mut self.client, scratch, cx)
            .map_err(|error| Failure::new(error, Side::Server));
        match (to_server, to_client) {
            (Poll::Ready(Err(failure)), _) | (_, Poll::Ready(Err(failure))) => {
                Poll::Ready(Err(failure))
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            (Poll::Ready(Ok(())), _) | (_, Poll::Ready(Ok(())))
                if Bug::HalfCloseEndsBoth.is_planted() =>
            {
                Poll::Ready(Ok(()))
            }
            _ => self.poll_revoked(cx).map(Err),
        }
    }

    /// Ready when the trust in a peer has ended, whatever the copying waits for.
    fn poll_revoked(&self, cx: &Context<'_>) -> Poll<Failure> {
        for (io, side) in [(&self.client, Side::Client), (&self.server, Side::Server)] {
            if let Err(error) = io.tcp().watch_revocation(cx) {
                let error = DirectionError::Read(error);
                return Poll::Ready(Failure { side, error });
            }
        }
        Poll::Pending
    }

    /// Passes on that the connection of one side has failed, after the bytes that it had received.
    async fn fail(mut self, failure: Failure, scratch: &Scratch) -> Result<(), CopyError> {
        let Failure { side, error } = failure;
        let failed = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        // A peer that is no longer trusted does not wait for the other one.
        if !failed.tcp().is_revoked() {
            let passed_on = timeout(RESET_TIME, self.pass_on_rest(side, scratch)).await;
            if passed_on.is_err() {
                tracing::debug!(to = %side.other(), "Reset overtakes bytes that the peer does not read");
            }
        }
        self.ended_by = Cause::of_error(error.source());
        let (own, other) = match side {
            Side::Client => (&self.to_server, &self.to_client),
            Side::Server => (&self.to_client, &self.to_server),
        };
        let end = ConnectionEnd {
            side,
            cause: self.ended_by,
            had_finished: own.is_closed(),
            other_had_finished: other.is_closed(),
        };
        if end.is_failure() {
            Err(error.into_copy_error(side))
        } else {
            Ok(())
        }
    }

    /// Copies what the kernel has received of `from`, and waits until the other peer has
    /// acknowledged it. Whichever operation has failed, there may be such bytes.
    async fn pass_on_rest(&mut self, from: Side, scratch: &Scratch) {
        let (direction, from, to) = match from {
            Side::Client => (&mut self.to_server, &mut self.client, &mut self.server),
            Side::Server => (&mut self.to_client, &mut self.server, &mut self.client),
        };
        // An error is the one that is being passed on, or leaves no peer to pass it on to.
        let _failed = std::future::poll_fn(|cx| direction.poll(from, to, scratch, cx)).await;
        let _failed = std::future::poll_fn(|cx| Pin::new(&mut *to).poll_flush(cx)).await;
        reset::until_acknowledged(|| to.tcp().is_acknowledged()).await;
    }

    fn is_half_closed(&self) -> bool {
        self.to_server.is_closed() != self.to_client.is_closed()
    }

    fn bytes_read(&self) -> u64 {
        self.to_server.bytes_read() + self.to_client.bytes_read()
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        let close = self.ended_by.passed_on();
        self.client.tcp().close_with(close);
        self.server.tcp().close_with(close);
    }
}

impl Failure {
    /// The failure of the direction that reads from `from`.
    fn new(error: DirectionError, from: Side) -> Self {
        let side = match error {
            DirectionError::Read(_) => from,
            DirectionError::Write(_) => from.other(),
        };
        Self { side, error }
    }
}

impl HalfClosedTimer {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            sleep: None,
            bytes_read: 0,
            last_read: Instant::now(),
        }
    }

    /// To be polled whenever the half-closed connection may have carried bytes.
    fn poll(&mut self, cx: &mut Context<'_>, bytes_read: u64) -> Poll<HalfClosedTooLong> {
        let has_read = self.bytes_read != bytes_read;
        if self.sleep.is_none() || (has_read && !Bug::HalfClosedTimerIgnoresBytes.is_planted()) {
            self.bytes_read = bytes_read;
            self.last_read = Instant::now();
        }
        let deadline = self.last_read + self.limit;
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            if deadline < sleep.deadline() {
                sleep.as_mut().reset(deadline);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if deadline <= sleep.deadline() {
                return Poll::Ready(HalfClosedTooLong);
            }
            // Bytes have been read since the timer was set.
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests;
