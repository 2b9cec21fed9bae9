//! What is to be written to a connection: small things collected in one vector, and at most one
//! large piece of body behind it that is not copied.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite as _;

use super::chunked;
use crate::http::buffers;
use crate::transport::Io;

/// Bytes on their way out. Holds no memory when there are none.
#[derive(Debug, Default)]
pub(super) struct Output {
    flat: Vec<u8>,
    /// How much of `flat` has been written.
    written: usize,
    /// Follows `flat`.
    piece: Bytes,
    /// Follows `piece`.
    tail: &'static [u8],
    /// Something has been written since the last [`Output::restart`].
    has_begun: bool,
    /// Bytes have been given to the stream that a TLS session may still hold.
    must_flush: bool,
}

/// Pieces of body up to this size are copied to the head and each other: a copy of it costs less
/// than another element of a vectored write.
const MAX_COPIED: usize = 4 * 1024;

/// More than this is not collected before it is written.
const FULL: usize = 16 * 1024;

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.flat.is_empty() && self.piece.is_empty() && self.tail.is_empty()
    }

    /// A new message begins.
    pub(super) fn restart(&mut self) {
        self.has_begun = false;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it should be written before anything is added.
    pub(super) fn is_full(&self) -> bool {
        !self.piece.is_empty() || !self.tail.is_empty() || self.flat.len() - self.written >= FULL
    }

    /// Where heads and the like are written. Only when it is not full.
    pub(super) fn flat(&mut self) -> &mut Vec<u8> {
        if self.flat.capacity() == 0 {
            self.flat = buffers::take_vector();
        }
        &mut self.flat
    }

    /// Adds a piece of body. Only when it is not full, and not empty.
    pub(super) fn push(&mut self, piece: Bytes, as_chunk: bool) {
        let tail = if as_chunk { chunked::CHUNK_END } else { b"" };
        let flat = self.flat();
        if as_chunk {
            chunked::write_size(flat, piece.len());
        }
        if piece.len() <= MAX_COPIED {
            flat.extend_from_slice(&piece);
            flat.extend_from_slice(tail);
        } else {
            self.piece = piece;
            self.tail = tail;
        }
    }

    /// Writes everything.
    pub(super) fn poll_flush(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let n = ready!(self.poll_write(io, cx))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.must_flush = true;
            self.has_begun = true;
            self.advance(n);
        }
        if self.must_flush {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let flat = &self.flat[self.written..];
        if self.piece.is_empty() && self.tail.is_empty() {
            return Pin::new(io).poll_write(cx, flat);
        }
        let slices = [flat, &*self.piece, self.tail].map(IoSlice::new);
        Pin::new(io).poll_write_vectored(cx, &slices)
    }

    /// `n` bytes have been written.
    fn advance(&mut self, mut n: usize) {
        let here = n.min(self.flat.len() - self.written);
        self.written += here;
        n -= here;
        if self.written == self.flat.len() {
            buffers::give_vector(std::mem::take(&mut self.flat));
            self.written = 0;
        }
        let here = n.min(self.piece.len());
        self.piece.advance(here);
        if self.piece.is_empty() {
            // Lets go of what it was a slice of.
            self.piece = Bytes::new();
        }
        self.tail = &self.tail[n - here..];
    }
}
