//! One direction of a copied connection: reads from the source, writes to the sink and forwards the
//! end of the stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mesh_planted::Bug;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::CopyError;
use crate::transport::ends::Side;
use crate::transport::scratch::SCRATCH_SIZE;
use crate::transport::socket::Socket;
use crate::transport::splice::{Fill, Pipe};
use crate::transport::tls::{BulkError, BulkTransfer};
use crate::transport::{Io, Scratch};

/// The state of one direction.
pub(super) struct Direction {
    buffered: Buffered,
    state: State,
    /// Whether the last read was large enough to use splice for the next one.
    is_bulk: bool,
    bytes_read: u64,
}

/// The operation that failed.
pub(super) enum DirectionError {
    Read(io::Error),
    Write(io::Error),
}

/// Bytes that were read from the source and not yet written to the sink.
enum Buffered {
    Nothing,
    Bytes { bytes: Vec<u8>, written: usize },
    Pipe { pipe: Pipe, filled: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    /// The source has ended; buffered bytes and the end still have to be forwarded.
    Closing,
    Closed,
}

/// Reads and writes before other connections of the thread are polled: at most 1 MiB through the
/// scratch buffer, 4 MiB through [`crate::transport::tls::RecordStream`].
const ROUNDS_PER_POLL: usize = 16;

/// A splice of fewer bytes is not worth its second system call and its pipe.
const MIN_BULK: usize = SCRATCH_SIZE / 4;

impl DirectionError {
    pub(super) fn source(&self) -> &io::Error {
        let (Self::Read(source) | Self::Write(source)) = self;
        source
    }

    /// The error of the connection of `side`.
    pub(super) fn into_copy_error(self, side: Side) -> CopyError {
        match self {
            Self::Read(source) => CopyError::Read { side, source },
            Self::Write(source) => CopyError::Write { side, source },
        }
    }
}

impl Direction {
    pub(super) fn new() -> Self {
        Self {
            buffered: Buffered::Nothing,
            state: State::Copying,
            is_bulk: false,
            bytes_read: 0,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Number of bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    pub(super) fn poll(
        &mut self,
        from: &mut Io,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionError>> {
        for _ in 0..ROUNDS_PER_POLL {
            ready!(self.poll_write_buffered(to, scratch, cx)).map_err(DirectionError::Write)?;
            match self.state {
                State::Closed => return Poll::Ready(Ok(())),
                State::Closing if Bug::EndIsReset.is_planted() => {
                    let reset = io::ErrorKind::ConnectionReset.into();
                    return Poll::Ready(Err(DirectionError::Read(reset)));
                }
                State::Closing if Bug::HalfCloseLost.is_planted() => {
                    self.state = State::Closed;
                    return Poll::Ready(Ok(()));
                }
                State::Closing => {
                    // Shutdown fails when the peer has closed the connection. The other direction
                    // fails too if that matters.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.state = State::Closed;
                    return Poll::Ready(Ok(()));
                }
                State::Copying => {}
            }
            if self.poll_copy(from, to, scratch, cx)?.is_pending() {
                // A TLS stream may buffer records that its socket did not accept.
                ready!(Pin::new(to).poll_flush(cx)).map_err(DirectionError::Write)?;
                return Poll::Pending;
            }
        }
        if !Bug::LostWakeUpOfCopy.is_planted() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Writes the buffered bytes. Ready when none are left.
    fn poll_write_buffered(
        &mut self,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.buffered {
            Buffered::Nothing => {}
            Buffered::Bytes { bytes, written } => {
                while *written < bytes.len() {
                    *written += ready!(poll_write_some(to, &bytes[*written..], cx))?;
                }
                self.buffered = Buffered::Nothing;
            }
            Buffered::Pipe { pipe, filled } => {
                while *filled > 0 {
                    let n = ready!(pipe.poll_empty(to.tcp(), *filled, cx))
                        .map_err(|error| to.record_error(error))?;
                    to.count_written(n);
                    *filled -= n;
                }
                if let Buffered::Pipe { pipe, .. } =
                    std::mem::replace(&mut self.buffered, Buffered::Nothing)
                {
                    scratch.return_pipe(pipe);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the next bytes and writes what the sink accepts immediately, except with splice.
    fn poll_copy(
        &mut self,
        from: &mut Io,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionError>> {
        if self.is_bulk
            && from.bare_tcp().is_some_and(Socket::can_splice)
            && to.bare_tcp().is_some_and(Socket::can_splice)
            && let Some(pipe) = scratch.take_pipe()
        {
            return self.poll_fill_pipe(pipe, from, to, scratch, cx);
        }
        if let Some(transfer) = poll_records(from, to, cx) {
            return self.finish_transfer(ready!(transfer), from, to);
        }
        let mut scratch = scratch.borrow();
        let mut buf = ReadBuf::new(&mut scratch);
        ready!(Pin::new(&mut *from).poll_read(cx, &mut buf)).map_err(DirectionError::Read)?;
        let read = buf.filled();
        self.count_read(read.len());
        let mut written = 0;
        while written < read.len() {
            match poll_write_some(to, &read[written..], cx) {
                Poll::Ready(Ok(n)) => written += n,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(DirectionError::Write(error)));
                }
                Poll::Pending => {
                    written += usize::from(Bug::PartialWriteLosesByte.is_planted());
                    self.buffered = Buffered::Bytes {
                        bytes: read[written..].to_vec(),
                        written: 0,
                    };
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Accounts for a bulk operation of [`crate::transport::tls::RecordStream`].
    fn finish_transfer(
        &mut self,
        transfer: Result<BulkTransfer, BulkError>,
        from: &Io,
        to: &Io,
    ) -> Poll<Result<(), DirectionError>> {
        let BulkTransfer { read, unsent } = match transfer {
            Ok(transfer) => transfer,
            Err(BulkError::Source(error)) => {
                return Poll::Ready(Err(DirectionError::Read(from.record_error(error))));
            }
            Err(BulkError::Sink(error)) => {
                return Poll::Ready(Err(DirectionError::Write(to.record_error(error))));
            }
        };
        if read == 0 {
            from.check_end_of_stream().map_err(DirectionError::Read)?;
        }
        from.count_read(read);
        to.count_written(read - unsent.len());
        self.count_read(read);
        if !unsent.is_empty() && !Bug::SealedRestLost.is_planted() {
            self.buffered = Buffered::Bytes {
                bytes: unsent,
                written: 0,
            };
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fill_pipe(
        &mut self,
        pipe: Pipe,
        from: &mut Io,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionError>> {
        let filled = match pipe.poll_fill(from.tcp(), cx) {
            Poll::Ready(Ok(Fill::Bytes(filled))) => filled,
            Poll::Ready(Ok(Fill::Urgent)) => {
                scratch.return_pipe(pipe);
                self.is_bulk = false;
                return self.poll_copy(from, to, scratch, cx);
            }
            Poll::Ready(Err(error)) => {
                // Bytes after an urgent one are passed on before the error.
                self.is_bulk = false;
                let error = from.record_error(error);
                return Poll::Ready(Err(DirectionError::Read(error)));
            }
            Poll::Pending => {
                scratch.return_pipe(pipe);
                return Poll::Pending;
            }
        };
        from.count_read(filled);
        if filled == 0 {
            from.check_end_of_stream().map_err(DirectionError::Read)?;
        }
        self.count_read(filled);
        if filled > 0 {
            self.buffered = Buffered::Pipe { pipe, filled };
        } else {
            scratch.return_pipe(pipe);
        }
        Poll::Ready(Ok(()))
    }

    /// Counts a read and chooses between closing, splice and copying for the next step.
    fn count_read(&mut self, bytes: usize) {
        self.bytes_read += bytes as u64;
        if bytes == 0 {
            self.state = State::Closing;
        }
        let min = if self.is_bulk { MIN_BULK } else { SCRATCH_SIZE };
        self.is_bulk = bytes >= min;
    }
}

/// Transfers bytes between a plain socket and a [`crate::transport::tls::RecordStream`]. `None` for
/// other combinations of connections.
fn poll_records(
    from: &mut Io,
    to: &mut Io,
    cx: &mut Context<'_>,
) -> Option<Poll<Result<BulkTransfer, BulkError>>> {
    if let Some(records) = to.sealable() {
        return Some(records.poll_seal_from(from.bare_tcp()?, cx));
    }
    Some(from.openable()?.poll_open_to(to.plain_tcp()?, cx))
}

fn poll_write_some(to: &mut Io, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        n => Poll::Ready(Ok(n)),
    }
}
