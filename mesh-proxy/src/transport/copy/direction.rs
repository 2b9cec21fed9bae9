//! One way of a copied connection: take from one side, deliver to the other, pass on the end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::{CopyError, Side};
use crate::tls::{BulkError, Moved};
use crate::transport::scratch::SCRATCH_SIZE;
use crate::transport::splice::Pipe;
use crate::transport::{Io, Scratch};

/// What it holds is what it has taken and not yet delivered.
pub(super) struct Direction {
    held: Held,
    state: State,
    /// The last read was large enough for the kernel to move the next bytes.
    bulk: bool,
    moved: u64,
}

/// Which end failed.
pub(super) enum DirectionError {
    Taking(io::Error),
    Delivering(io::Error),
}

enum Held {
    Nothing,
    Bytes {
        bytes: Vec<u8>,
        written: usize,
    },
    /// The kernel holds them.
    Pipe {
        pipe: Pipe,
        filled: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    /// The source has ended; what is held and then the end are still to be passed on.
    Ending,
    Ended,
}

/// Reads and writes before the other connections of the thread have their turn: 1 MiB at most
/// through the scratch, 4 MiB through records of ours.
const ROUNDS_PER_POLL: usize = 16;

/// Below this a splice moved too little to be worth its second system call and its pipe.
const MIN_BULK: usize = SCRATCH_SIZE / 4;

impl DirectionError {
    pub(super) fn blame(self, source: Side, sink: Side) -> CopyError {
        match self {
            Self::Taking(error) => CopyError::Read(source, error),
            Self::Delivering(error) => CopyError::Write(sink, error),
        }
    }
}

impl Direction {
    pub(super) fn new() -> Self {
        Self {
            held: Held::Nothing,
            state: State::Copying,
            bulk: false,
            moved: 0,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Bytes taken so far.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    pub(super) fn poll(
        &mut self,
        from: &mut Io,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionError>> {
        for _ in 0..ROUNDS_PER_POLL {
            ready!(self.poll_deliver(to, scratch, cx)).map_err(DirectionError::Delivering)?;
            match self.state {
                State::Ended => return Poll::Ready(Ok(())),
                State::Ending => {
                    // A socket whose peer is gone cannot be shut down; the other direction finds
                    // out if that matters.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.state = State::Ended;
                    return Poll::Ready(Ok(()));
                }
                State::Copying => {}
            }
            if self.poll_take(from, to, scratch, cx)?.is_pending() {
                // A TLS session may still hold records that its socket did not take.
                ready!(Pin::new(to).poll_flush(cx)).map_err(DirectionError::Delivering)?;
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what is held. Ready when nothing is.
    fn poll_deliver(
        &mut self,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.held {
            Held::Nothing => {}
            Held::Bytes { bytes, written } => {
                while *written < bytes.len() {
                    *written += ready!(poll_write_some(to, &bytes[*written..], cx))?;
                }
                self.held = Held::Nothing;
            }
            Held::Pipe { pipe, filled } => {
                while *filled > 0 {
                    let n = ready!(pipe.poll_empty(to.tcp(), *filled, cx))
                        .map_err(|error| to.note_error(error))?;
                    to.count_written(n);
                    *filled -= n;
                }
                if let Held::Pipe { pipe, .. } = std::mem::replace(&mut self.held, Held::Nothing) {
                    scratch.give_pipe(pipe);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the next bytes and, through the scratch, delivers what the sink accepts at once.
    fn poll_take(
        &mut self,
        from: &mut Io,
        to: &mut Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionError>> {
        if self.bulk
            && from.bare_tcp().is_some()
            && to.bare_tcp().is_some()
            && let Some(pipe) = scratch.take_pipe()
        {
            return self.poll_fill_pipe(pipe, from, scratch, cx);
        }
        if let Some(moved) = poll_records(from, to, cx) {
            return self.take_moved(ready!(moved), from, to);
        }
        let mut scratch = scratch.borrow();
        let mut buf = ReadBuf::new(&mut scratch);
        ready!(Pin::new(&mut *from).poll_read(cx, &mut buf)).map_err(DirectionError::Taking)?;
        let taken = buf.filled();
        self.taken(taken.len());
        let mut written = 0;
        while written < taken.len() {
            match poll_write_some(to, &taken[written..], cx) {
                Poll::Ready(Ok(n)) => written += n,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(DirectionError::Delivering(error)));
                }
                Poll::Pending => {
                    self.held = Held::Bytes {
                        bytes: taken[written..].to_vec(),
                        written: 0,
                    };
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Accounts for what records of ours have carried.
    fn take_moved(
        &mut self,
        moved: Result<Moved, BulkError>,
        from: &Io,
        to: &Io,
    ) -> Poll<Result<(), DirectionError>> {
        let Moved { taken, left } = match moved {
            Ok(moved) => moved,
            Err(BulkError::Source(error)) => {
                return Poll::Ready(Err(DirectionError::Taking(from.note_error(error))));
            }
            Err(BulkError::Sink(error)) => {
                return Poll::Ready(Err(DirectionError::Delivering(to.note_error(error))));
            }
        };
        from.count_read(taken);
        to.count_written(taken - left.len());
        self.taken(taken);
        if !left.is_empty() {
            self.held = Held::Bytes {
                bytes: left,
                written: 0,
            };
        }
        Poll::Ready(Ok(()))
    }

    fn poll_fill_pipe(
        &mut self,
        pipe: Pipe,
        from: &Io,
        scratch: &Scratch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), DirectionError>> {
        let filled = match pipe.poll_fill(from.tcp(), cx) {
            Poll::Ready(Ok(filled)) => filled,
            Poll::Ready(Err(error)) => {
                let error = from.note_error(error);
                return Poll::Ready(Err(DirectionError::Taking(error)));
            }
            Poll::Pending => {
                scratch.give_pipe(pipe);
                return Poll::Pending;
            }
        };
        from.count_read(filled);
        self.taken(filled);
        if filled > 0 {
            self.held = Held::Pipe { pipe, filled };
        } else {
            scratch.give_pipe(pipe);
        }
        Poll::Ready(Ok(()))
    }

    /// Judges what was taken: the end, bulk or chatter.
    fn taken(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        if bytes == 0 {
            self.state = State::Ending;
        }
        self.bulk = bytes >= if self.bulk { MIN_BULK } else { SCRATCH_SIZE };
    }
}

/// Moves bytes between a plain socket and records that are ours; `None` when the two sides are
/// something else.
fn poll_records(
    from: &mut Io,
    to: &mut Io,
    cx: &mut Context<'_>,
) -> Option<Poll<Result<Moved, BulkError>>> {
    if let Some(records) = to.sealing() {
        return Some(records.poll_seal_from(from.bare_tcp()?, cx));
    }
    Some(from.opening()?.poll_open_to(to.plain_tcp()?, cx))
}

fn poll_write_some(to: &mut Io, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
    match ready!(Pin::new(to).poll_write(cx, bytes))? {
        0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        n => Poll::Ready(Ok(n)),
    }
}
