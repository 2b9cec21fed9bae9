//! The bytes to be written to a connection: small parts copied into one vector, followed by at most
//! one large part of a body that is not copied.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite as _;

use super::chunked;
use crate::http::buffers;
use crate::transport::Io;

/// Bytes to be written. Holds no memory when it is empty.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    copied: Vec<u8>,
    /// How many bytes of `copied` have been written.
    written: usize,
    /// Follows `copied`.
    large: Bytes,
    /// Follows `large`.
    tail: &'static [u8],
    /// A byte has been written since the last [`WriteBuffer::begin_message`].
    has_written: bool,
    /// A TLS session may still hold bytes that were passed to the stream.
    must_flush: bool,
}

/// Body data up to this size is copied: a copy costs less than another element of a vectored write.
const MAX_COPIED: usize = 4 * 1024;

/// The buffer is written before it holds more than this.
const FULL: usize = 16 * 1024;

impl WriteBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.large.is_empty() && self.tail.is_empty()
    }

    pub(super) fn begin_message(&mut self) {
        self.has_written = false;
    }

    pub(super) fn has_written(&self) -> bool {
        self.has_written
    }

    /// Whether the buffer must be written before anything is added.
    pub(super) fn is_full(&self) -> bool {
        !self.large.is_empty() || !self.tail.is_empty() || self.copied.len() - self.written >= FULL
    }

    /// Returns the vector for start lines and headers. Not to be called when the buffer is full.
    pub(super) fn append_buffer(&mut self) -> &mut Vec<u8> {
        if self.copied.capacity() == 0 {
            self.copied = buffers::take_write_buffer();
        }
        &mut self.copied
    }

    /// Adds body data, which must not be empty. Not to be called when the buffer is full.
    pub(super) fn push(&mut self, data: Bytes, as_chunk: bool) {
        let tail = if as_chunk { chunked::CHUNK_END } else { b"" };
        let copied = self.append_buffer();
        if as_chunk {
            chunked::write_size(copied, data.len());
        }
        if data.len() <= MAX_COPIED {
            copied.extend_from_slice(&data);
            copied.extend_from_slice(tail);
        } else {
            self.large = data;
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
            self.has_written = true;
            self.advance(n);
        }
        if self.must_flush {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let copied = &self.copied[self.written..];
        if self.large.is_empty() && self.tail.is_empty() {
            return Pin::new(io).poll_write(cx, copied);
        }
        let slices = [copied, &*self.large, self.tail].map(IoSlice::new);
        Pin::new(io).poll_write_vectored(cx, &slices)
    }

    /// Removes the first `n` bytes, which have been written.
    fn advance(&mut self, mut n: usize) {
        let here = n.min(self.copied.len() - self.written);
        self.written += here;
        n -= here;
        if self.written == self.copied.len() {
            buffers::return_write_buffer(std::mem::take(&mut self.copied));
            self.written = 0;
        }
        let here = n.min(self.large.len());
        self.large.advance(here);
        if self.large.is_empty() {
            // An empty slice would keep the memory alive that it was part of.
            self.large = Bytes::new();
        }
        self.tail = &self.tail[n - here..];
    }
}
