//! The bytes to be written to a connection. One vectored write takes all of them: start lines and
//! headers, and the parts of bodies, of which large ones are not copied.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use mesh_http2::Output;
use mesh_planted::Bug;
use tokio::io::AsyncWrite as _;

use super::chunked;
use crate::http::output::{self, OUTPUT_BUFFERS};
use crate::transport::Io;

/// Bytes to be written. Holds no memory when it is empty.
#[derive(Debug)]
pub(super) struct WriteBuffer {
    output: Output,
    /// A byte has been written since the last [`WriteBuffer::begin_message`].
    has_written: bool,
    /// A TLS session may still hold bytes that were passed to the stream.
    must_flush: bool,
}

/// The buffer is written before the copied bytes exceed this, including the ones that have been
/// written, or before there are more bytes or pieces of large parts. A body of 64 KiB that
/// arrives in HTTP/2 frames, which reads may divide, is one write instead of five.
const FULL_COPIED: usize = 16 * 1024;
const FULL_LARGE: usize = 64 * 1024;
const MAX_LARGE_PARTS: usize = 8;

/// Large parts, and the copied bytes before, between and after them.
const MAX_SLICES: usize = 2 * MAX_LARGE_PARTS + 1;

impl WriteBuffer {
    pub(super) fn new() -> Self {
        Self {
            output: Output::new(OUTPUT_BUFFERS),
            has_written: false,
            must_flush: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.output.is_empty()
    }

    pub(super) fn begin_message(&mut self) {
        self.has_written = false;
    }

    pub(super) fn has_written(&self) -> bool {
        self.has_written
    }

    /// Whether the buffer must be written before anything is added.
    pub(super) fn is_full(&self) -> bool {
        self.output.buffer_len() >= FULL_COPIED
            || self.output.chunk_bytes() >= FULL_LARGE
            || self.output.chunks() >= MAX_LARGE_PARTS
    }

    /// Adds what `add` writes: a start line, headers, or framing. Not to be called when the buffer
    /// is full.
    pub(super) fn append(&mut self, add: impl FnOnce(&mut Vec<u8>)) {
        self.output.write(add);
    }

    /// Adds body data, which must not be empty. Not to be called when the buffer is full.
    pub(super) fn push(&mut self, data: Bytes, as_chunk: bool) {
        if as_chunk {
            self.append(|buffer| chunked::write_size(buffer, data.len()));
        }
        self.output.push(data);
        if as_chunk {
            self.append(|buffer| buffer.extend_from_slice(chunked::CHUNK_END));
        }
    }

    /// Writes everything.
    pub(super) fn poll_flush(&mut self, io: &mut Io, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let n = ready!(output::poll_write::<MAX_SLICES>(&self.output, io, cx))?;
            self.must_flush = true;
            self.has_written = true;
            let is_partial = n < self.output.len() && Bug::OutputSkipsByte.is_planted();
            self.output.advance(n + usize::from(is_partial));
        }
        if self.must_flush {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSlice;

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
        buffer.output.len()
    }

    #[test]
    fn frames_of_a_large_body_are_one_write() {
        let mut buffer = WriteBuffer::new();
        buffer.append(|buffer| buffer.extend_from_slice(b"head"));
        let frame = Bytes::from(vec![b'x'; 16 * 1024]);
        assert_eq!(fill(&mut buffer, &frame, false), 4 + 64 * 1024);
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = buffer.output.slices(&mut slices);
        let lengths: Vec<_> = slices[..count].iter().map(|slice| slice.len()).collect();
        assert_eq!(lengths, [4, 16384, 16384, 16384, 16384]);
    }

    #[test]
    fn bytes_and_parts_are_bounded() {
        for length in [
            1,
            4 * 1024,
            4 * 1024 + 1,
            16 * 1024,
            FULL_LARGE - 1,
            72 * 1024,
        ] {
            let mut buffer = WriteBuffer::new();
            let part = Bytes::from(vec![b'x'; length]);
            for as_chunk in [false, true] {
                let held = fill(&mut buffer, &part, as_chunk);
                assert!(held < FULL_COPIED + FULL_LARGE + length, "{length}: {held}");
                let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                assert!(buffer.output.slices(&mut slices) <= MAX_SLICES);
                buffer.output.advance(held);
                assert!(buffer.is_empty());
            }
        }
    }

    /// The written part of the vector counts as well: a reader that always leaves some of it would
    /// let it grow otherwise.
    #[test]
    fn written_bytes_count_until_all_is_written() {
        let mut buffer = WriteBuffer::new();
        let part = Bytes::from(vec![b'x'; 1000]);
        while !buffer.is_full() {
            buffer.push(part.clone(), false);
            buffer.output.advance(999);
        }
        assert!(buffer.output.buffer_len() <= FULL_COPIED + part.len());
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
            let mut buffer = WriteBuffer::new();
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
            buffer.append(|buffer| chunked::write_end(buffer, None));
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
