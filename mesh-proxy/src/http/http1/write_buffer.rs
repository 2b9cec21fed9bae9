//! The bytes to be written to a connection: small parts copied into one vector, and between them
//! the large parts of bodies, which are not copied. One vectored write takes all of them.

use std::collections::VecDeque;
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
    large: VecDeque<LargePart>,
    /// The unwritten bytes of `large`.
    large_bytes: usize,
    /// A byte has been written since the last [`WriteBuffer::begin_message`].
    has_written: bool,
    /// A TLS session may still hold bytes that were passed to the stream.
    must_flush: bool,
}

/// A part of a body that is written after the first `after` bytes of `copied`.
#[derive(Debug)]
struct LargePart {
    after: usize,
    data: Bytes,
}

/// Body data up to this size is copied: a copy costs less than another element of a vectored write.
const MAX_COPIED: usize = 4 * 1024;

/// The buffer is written before `copied` holds more than this, which includes what has been written
/// of it, or before there are more bytes or pieces of large parts. A body of 64 KiB that arrives in
/// HTTP/2 frames, which reads may divide, is one write instead of five.
const FULL_COPIED: usize = 16 * 1024;
const FULL_LARGE: usize = 64 * 1024;
const MAX_LARGE_PARTS: usize = 8;

/// Large parts, and what is copied before, between and after them.
const MAX_SLICES: usize = 2 * MAX_LARGE_PARTS + 1;

impl WriteBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.large.is_empty()
    }

    pub(super) fn begin_message(&mut self) {
        self.has_written = false;
    }

    pub(super) fn has_written(&self) -> bool {
        self.has_written
    }

    /// Whether the buffer must be written before anything is added.
    pub(super) fn is_full(&self) -> bool {
        self.copied.len() >= FULL_COPIED
            || self.large_bytes >= FULL_LARGE
            || self.large.len() >= MAX_LARGE_PARTS
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
        let copied = self.append_buffer();
        if as_chunk {
            chunked::write_size(copied, data.len());
        }
        if data.len() <= MAX_COPIED {
            copied.extend_from_slice(&data);
        } else {
            let after = copied.len();
            self.large_bytes += data.len();
            self.large.push_back(LargePart { after, data });
        }
        if as_chunk {
            self.copied.extend_from_slice(chunked::CHUNK_END);
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
        let io = Pin::new(io);
        if self.large.is_empty() {
            return io.poll_write(cx, &self.copied[self.written..]);
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = self.slices(&mut slices);
        io.poll_write_vectored(cx, &slices[..count])
    }

    /// Sets slices to the bytes to be written, in their order, and returns how many were set.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut count = 0;
        let mut add = |bytes: &'a [u8]| {
            if !bytes.is_empty() {
                slices[count] = IoSlice::new(bytes);
                count += 1;
            }
        };
        let mut from = self.written;
        for part in &self.large {
            add(&self.copied[from..part.after]);
            add(&part.data);
            from = part.after;
        }
        add(&self.copied[from..]);
        count
    }

    /// Removes the first `n` bytes, which have been written.
    fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let until = self
                .large
                .front()
                .map_or(self.copied.len(), |part| part.after);
            let here = n.min(until - self.written);
            self.written += here;
            n -= here;
            let Some(part) = self.large.front_mut() else {
                break;
            };
            let here = n.min(part.data.len());
            part.data.advance(here);
            self.large_bytes -= here;
            n -= here;
            if part.data.is_empty() {
                self.large.pop_front();
            }
        }
        if self.large.is_empty() && self.written == self.copied.len() {
            buffers::return_write_buffer(std::mem::take(&mut self.copied));
            self.written = 0;
            self.large = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use socket2::SockRef;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Adds the parts of a body as its sender does, and returns how many bytes the buffer held when
    /// it was full.
    fn fill(buffer: &mut WriteBuffer, part: &Bytes, as_chunk: bool) -> usize {
        while !buffer.is_full() {
            buffer.push(part.clone(), as_chunk);
        }
        buffer.copied.len() + buffer.large_bytes
    }

    #[test]
    fn frames_of_a_large_body_are_one_write() {
        let mut buffer = WriteBuffer::default();
        buffer.append_buffer().extend_from_slice(b"head");
        let frame = Bytes::from(vec![b'x'; 16 * 1024]);
        assert_eq!(fill(&mut buffer, &frame, false), 4 + 64 * 1024);
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = buffer.slices(&mut slices);
        let lengths: Vec<_> = slices[..count].iter().map(|slice| slice.len()).collect();
        assert_eq!(lengths, [4, 16384, 16384, 16384, 16384]);
    }

    #[test]
    fn bytes_and_parts_are_bounded() {
        for length in [
            1,
            MAX_COPIED,
            MAX_COPIED + 1,
            16 * 1024,
            FULL_LARGE - 1,
            72 * 1024,
        ] {
            let mut buffer = WriteBuffer::default();
            let part = Bytes::from(vec![b'x'; length]);
            for as_chunk in [false, true] {
                let held = fill(&mut buffer, &part, as_chunk);
                assert!(held < FULL_COPIED + FULL_LARGE + length, "{length}: {held}");
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                assert!(buffer.slices(&mut slices) <= MAX_SLICES);
                buffer.advance(held);
                assert!(buffer.is_empty());
                assert_eq!(buffer.copied.capacity() + buffer.large.capacity(), 0);
            }
        }
    }

    /// What was written of the vector counts as well: a reader that always leaves some of it would
    /// let it grow otherwise.
    #[test]
    fn written_bytes_count_until_all_is_written() {
        let mut buffer = WriteBuffer::default();
        let part = Bytes::from(vec![b'x'; 1000]);
        while !buffer.is_full() {
            buffer.push(part.clone(), false);
            buffer.advance(999);
        }
        assert!(buffer.copied.len() <= FULL_COPIED + part.len());
    }

    /// A socket accepts parts of a write that end anywhere.
    #[tokio::test]
    async fn parts_arrive_in_their_order_through_partial_writes() {
        const ENDED: &[u8] = b"0\r\n\r\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let writer = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut reader, _) = listener.accept().await.unwrap();
        SockRef::from(&writer).set_send_buffer_size(4096).unwrap();
        let mut io = Io::plain(writer);
        let sending = async move {
            let mut buffer = WriteBuffer::default();
            let mut expected = Vec::new();
            for (n, length) in [10, 5000, 4096, 16_384, 1, 60_000, 70_000, 4097]
                .iter()
                .cycle()
                .take(200)
                .enumerate()
            {
                if buffer.is_full() {
                    poll_fn(|cx| buffer.poll_flush(&mut io, cx)).await.unwrap();
                }
                let part = Bytes::from(vec![b'a' + (n % 26) as u8; *length]);
                expected.extend_from_slice(format!("{length:x}\r\n").as_bytes());
                expected.extend_from_slice(&part);
                expected.extend_from_slice(chunked::CHUNK_END);
                buffer.push(part, true);
            }
            chunked::write_end(buffer.append_buffer(), None);
            poll_fn(|cx| buffer.poll_flush(&mut io, cx)).await.unwrap();
            expected.extend_from_slice(ENDED);
            expected
        };
        let mut received = Vec::new();
        let (expected, read) = tokio::join!(sending, reader.read_to_end(&mut received));
        read.unwrap();
        assert!(
            received == expected,
            "{} of {} bytes",
            received.len(),
            expected.len()
        );
    }
}
