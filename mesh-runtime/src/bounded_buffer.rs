//! The buffer of everything that is read from a peer before it is authorized: protocol detection,
//! TLS handshakes, transport headers and header sections of HTTP/1 (docs/adr/0160).
//!
//! It holds at most its capacity, and bytes are added only by reading into the room that is left. A
//! [`Scan`] passes each byte to its [`Scanner`] once, however the peer splits them into segments.
//! Both bounds, of memory and of work, therefore hold for every reader without a check of its own.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

/// Bytes that were received and are not processed yet.
#[derive(Debug)]
pub struct BoundedBuffer {
    bytes: BytesMut,
    // Each connection has two buffers: 32 bits are enough and keep them small.
    capacity: u32,
    work: u32,
}

/// The result of one read into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// This many bytes, at least one, were added.
    Read(usize),
    /// The peer has closed its direction.
    End,
    /// The buffer holds its capacity. Nothing was read.
    Full,
}

/// Decides by bytes that are received in pieces.
pub trait Scanner {
    /// The result, once the bytes suffice for one.
    type Verdict;

    /// Reads the bytes after the earlier calls' bytes. The verdict must not depend on how the bytes
    /// are split. Not called again after a verdict.
    fn scan(&mut self, next: &[u8]) -> Option<Self::Verdict>;
}

/// A scanner and its position in a buffer, which only moves forward. Nothing may be taken off the
/// buffer during the scan.
#[derive(Debug)]
pub struct Scan<S> {
    scanner: S,
    position: usize,
}

/// The least that the buffer grows by, unless its capacity is closer.
const MIN_GROWTH: usize = 256;

impl BoundedBuffer {
    /// Creates an empty buffer, which takes no memory. A capacity above 4 GiB counts as that.
    pub fn new(capacity: usize) -> Self {
        Self {
            bytes: BytesMut::new(),
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            work: 0,
        }
    }

    /// How many more bytes the buffer may hold.
    pub fn room(&self) -> usize {
        self.capacity().saturating_sub(self.bytes.len())
    }

    /// The most bytes that the buffer may hold.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The memory that the bytes take: at most one and a half times the capacity.
    pub fn allocated(&self) -> usize {
        self.bytes.capacity()
    }

    /// How many bytes were copied into the buffer, moved within it or scanned. It grows linearly
    /// with the bytes that the peer has sent.
    pub fn work(&self) -> u32 {
        self.work
    }

    /// Reads once, at most the room, via `shared`, so that the buffer takes no more memory than the
    /// bytes received.
    ///
    /// # Errors
    ///
    /// Fails as `read` does.
    pub fn poll_fill(
        &mut self,
        shared: &mut [u8],
        read: impl FnOnce(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<Fill>> {
        let room = self.room().min(shared.len());
        if room == 0 {
            return Poll::Ready(Ok(Fill::Full));
        }
        let mut buf = ReadBuf::new(&mut shared[..room]);
        ready!(read(&mut buf))?;
        let received = buf.filled();
        if self.bytes.capacity() == 0 {
            self.bytes = BytesMut::from(received);
        } else {
            self.reserve(received.len());
            self.bytes.extend_from_slice(received);
        }
        Poll::Ready(Ok(self.filled(received.len())))
    }

    /// Reads once, at most the room and `at_most`, into memory that is reserved for it.
    ///
    /// # Errors
    ///
    /// Fails as reading from the peer does.
    pub fn poll_fill_from(
        &mut self,
        cx: &mut Context<'_>,
        mut peer: Pin<&mut impl AsyncRead>,
        at_most: usize,
    ) -> Poll<io::Result<Fill>> {
        let room = self.room().min(at_most);
        if room == 0 {
            return Poll::Ready(Ok(Fill::Full));
        }
        let spare = self.bytes.capacity() - self.bytes.len();
        let room = if spare == 0 {
            self.reserve(room);
            room
        } else {
            // Less than the caller allows: otherwise each small read would move all bytes.
            room.min(spare)
        };
        let mut target = (&mut self.bytes).limit(room);
        let read = pin!(peer.read_buf(&mut target)).poll(cx);
        let Poll::Ready(Ok(received)) = read else {
            // A connection that waits holds no memory.
            self.release_if_empty();
            return read.map_ok(|_none| Fill::End);
        };
        Poll::Ready(Ok(self.filled(received)))
    }

    /// The same, as a future.
    ///
    /// # Errors
    ///
    /// Fails as reading from the peer does.
    pub async fn fill_from(
        &mut self,
        peer: &mut (impl AsyncRead + Unpin),
        at_most: usize,
    ) -> io::Result<Fill> {
        poll_fn(|cx| self.poll_fill_from(cx, Pin::new(&mut *peer), at_most)).await
    }

    /// Passes the bytes that `scan` has not seen to its scanner.
    pub fn scan<S: Scanner>(&mut self, scan: &mut Scan<S>) -> Option<S::Verdict> {
        let next = self.bytes.get(scan.position..).unwrap_or_default();
        if next.is_empty() {
            return None;
        }
        scan.position += next.len();
        self.work = self.work.saturating_add(next.len() as u32);
        scan.scanner.scan(next)
    }

    /// Removes the first `n` bytes, or all if there are fewer.
    pub fn consume(&mut self, n: usize) {
        self.bytes.advance(n.min(self.bytes.len()));
        self.release_if_empty();
    }

    /// Takes the first `n` bytes, or all if there are fewer, without copying them.
    pub fn take(&mut self, n: usize) -> Bytes {
        let taken = self.bytes.split_to(n.min(self.bytes.len())).freeze();
        self.release_if_empty();
        taken
    }

    /// Takes all bytes.
    pub fn take_all(&mut self) -> BytesMut {
        std::mem::take(&mut self.bytes)
    }

    /// Calls `decode`, which may take bytes off the front.
    pub fn decode<T>(&mut self, decode: impl FnOnce(&mut BytesMut) -> T) -> T {
        let before = self.bytes.len();
        let decoded = decode(&mut self.bytes);
        debug_assert!(self.bytes.len() <= before, "a decoder added bytes");
        decoded
    }

    /// Puts back bytes that were taken off and not processed. The capacity grows if it must.
    pub fn put_back(&mut self, front: BytesMut) {
        let rest = std::mem::replace(&mut self.bytes, front);
        let length = self.bytes.len() + rest.len();
        self.capacity = self.capacity.max(u32::try_from(length).unwrap_or(u32::MAX));
        if !rest.is_empty() {
            self.reserve(rest.len());
            self.bytes.extend_from_slice(&rest);
        }
    }

    /// Releases the memory of an empty buffer.
    pub fn release_if_empty(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }

    fn filled(&mut self, received: usize) -> Fill {
        self.work = self.work.saturating_add(received as u32);
        if received == 0 {
            self.release_if_empty();
            return Fill::End;
        }
        Fill::Read(received)
    }

    /// Makes room for `n` more bytes. Doubles the memory, so that many small reads copy each byte a
    /// constant number of times. The half above the capacity does the same for a full buffer off
    /// whose front a few bytes are taken again and again.
    fn reserve(&mut self, n: usize) {
        let length = self.bytes.len();
        if self.bytes.capacity() - length >= n {
            return;
        }
        let limit = self.capacity() + self.capacity() / 2;
        let growth = if length == 0 {
            n
        } else {
            n.max(length).max(MIN_GROWTH)
        };
        let mut larger = BytesMut::with_capacity((length + growth).min(limit));
        larger.extend_from_slice(&self.bytes);
        self.work = self.work.saturating_add(length as u32);
        self.bytes = larger;
    }
}

impl Deref for BoundedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes may be changed in place, not added to.
impl DerefMut for BoundedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl<S> Scan<S> {
    /// Begins at the first byte of a buffer.
    pub fn new(scanner: S) -> Self {
        Self {
            scanner,
            position: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Records its input and never decides.
    struct Recorder(Vec<u8>);

    impl Scanner for Recorder {
        type Verdict = Infallible;

        fn scan(&mut self, next: &[u8]) -> Option<Infallible> {
            self.0.extend_from_slice(next);
            None
        }
    }

    fn fill(buffer: &mut BoundedBuffer, bytes: &[u8]) -> Fill {
        let filled = buffer.poll_fill(&mut [0; 4096], |buf| {
            buf.put_slice(&bytes[..bytes.len().min(buf.remaining())]);
            Poll::Ready(Ok(()))
        });
        match filled {
            Poll::Ready(Ok(filled)) => filled,
            Poll::Ready(Err(_)) | Poll::Pending => unreachable!("the reader is ready"),
        }
    }

    #[test]
    fn buffer_never_holds_more_than_its_capacity_or_allocates_half_more() {
        for piece in [1, 7, 300, 4096] {
            let mut buffer = BoundedBuffer::new(10_000);
            let mut received = 0;
            while let Fill::Read(n) = fill(&mut buffer, &vec![7; piece]) {
                received += n;
                assert_eq!(buffer.len(), received);
                assert!(buffer.allocated() <= 15_000, "{}", buffer.allocated());
            }
            assert_eq!((received, buffer.room()), (10_000, 0), "{piece}");
            assert_eq!(fill(&mut buffer, b"x"), Fill::Full);
        }
    }

    #[test]
    fn work_is_linear_however_bytes_are_split() {
        for capacity in [1_000, 10_000, 100_000] {
            for piece in [1, 7, 300, 4096] {
                let mut buffer = BoundedBuffer::new(capacity);
                let mut scan = Scan::new(Recorder(Vec::new()));
                while let Fill::Read(_) = fill(&mut buffer, &vec![7; piece]) {
                    assert!(buffer.scan(&mut scan).is_none());
                }
                assert_eq!(scan.scanner.0, *buffer, "each byte once");
                let limit = 4 * capacity as u32;
                assert!(buffer.work() <= limit, "{} of {limit}", buffer.work());
            }
        }
    }

    #[tokio::test]
    async fn work_of_direct_reads_is_linear_while_the_front_is_taken() {
        for taken in [0, 1, 5, 6] {
            let mut buffer = BoundedBuffer::new(60_000);
            let mut received = 0;
            while received < 120_000 {
                let mut peer = &[7; 6][..];
                match buffer.fill_from(&mut peer, 4096).await.unwrap() {
                    Fill::Read(n) => received += n as u32,
                    Fill::Full if taken > 0 => {}
                    Fill::Full | Fill::End => break,
                }
                buffer.consume(taken);
                assert!(buffer.allocated() <= 90_000);
            }
            let limit = 6 * received;
            assert!(buffer.work() <= limit, "{taken}: {}", buffer.work());
        }
    }

    #[tokio::test]
    async fn direct_reads_are_limited_by_room_and_by_the_caller() {
        let (mut peer, mut sender) = tokio::io::duplex(1 << 16);
        sender.write_all(&[7; 5000]).await.unwrap();
        drop(sender);
        let mut buffer = BoundedBuffer::new(2000);
        let mut filled = Vec::new();
        for _ in 0..3 {
            filled.push(buffer.fill_from(&mut peer, 1500).await.unwrap());
        }
        assert_eq!(filled, [Fill::Read(1500), Fill::Read(500), Fill::Full]);
        assert!(buffer.allocated() <= 3000);
        buffer.consume(2000);
        assert_eq!(buffer.allocated(), 0, "an empty buffer takes no memory");
        for expected in [Fill::Read(2000), Fill::Full] {
            assert_eq!(buffer.fill_from(&mut peer, 4000).await.unwrap(), expected);
        }
        assert_eq!(buffer.take(3000).len(), 2000);
        assert_eq!(
            buffer.fill_from(&mut peer, 4000).await.unwrap(),
            Fill::Read(1000)
        );
        buffer.consume(1000);
        assert_eq!(buffer.fill_from(&mut peer, 4000).await.unwrap(), Fill::End);
    }

    #[test]
    fn bytes_that_are_put_back_come_first() {
        let mut buffer = BoundedBuffer::new(4);
        assert_eq!(fill(&mut buffer, b"late"), Fill::Read(4));
        buffer.put_back(BytesMut::from(&b"early "[..]));
        assert_eq!(*buffer, *b"early late");
        assert_eq!(buffer.room(), 0);
        assert_eq!(&buffer.decode(BytesMut::split)[..], b"early late");
        assert_eq!(buffer.take_all().len(), 0);
    }
}
