//! The bytes of an HTTP/2 connection, moved in larger pieces than the library asks for: it reads 8 KiB at a time and writes each large frame by itself, and what a
//! system call and a pass through the network stack cost hardly depends on the size.
//!
//! What the library writes is collected; whoever drives the connection sends it when the library has nothing more to do ([`Wire::poll_send`]). The vectors are the thread's
//! and given back as soon as they are empty.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::http::buffers;
use crate::transport::Io;

pub(super) struct Wire {
    io: Io,
    /// Read, and not asked for yet.
    ahead: Option<Ahead>,
    /// Written by the library, and not sent yet.
    out: Pending,
    /// Why sending failed. Told when the library reads next, which it does whenever it is polled.
    failure: Option<io::Error>,
}

/// What is left in the thread's room that was read into.
struct Ahead {
    room: Box<[u8]>,
    rest: Range<usize>,
}

/// Bytes in a vector of the thread.
#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    /// So many at the front are done.
    done: usize,
}

/// As much is collected before it must be sent. Four TLS records, and as much as one TCP segment of the local machine holds.
const COLLECTED: usize = 64 * 1024;

impl Wire {
    pub(super) fn new(io: Io) -> Self {
        Self {
            io,
            ahead: None,
            out: Pending::default(),
            failure: None,
        }
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Err(failure));
        }
        if self.ahead.is_none() {
            if self.io.reads_ahead() {
                return Pin::new(&mut self.io).poll_read(cx, buf);
            }
            ready!(self.poll_fill(cx))?;
        }
        if let Some(ahead) = &mut self.ahead {
            let n = ahead.rest.len().min(buf.remaining());
            buf.put_slice(&ahead.room[ahead.rest.start..][..n]);
            ahead.rest.start += n;
        }
        self.ahead.take_if(|ahead| ahead.rest.is_empty());
        Poll::Ready(Ok(()))
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut ahead = Ahead {
            room: buffers::take_room(),
            rest: 0..0,
        };
        let mut room = ReadBuf::new(&mut ahead.room);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut room))?;
        ahead.rest.end = room.filled().len();
        self.ahead = Some(ahead);
        Poll::Ready(Ok(()))
    }

    /// Collects; waits only when too much has been collected that cannot be sent.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.out.rest().len() >= COLLECTED {
            ready!(self.poll_drain(cx))?;
        }
        let mut room = COLLECTED - self.out.rest().len();
        let mut taken = 0;
        for slice in slices {
            let here = room.min(slice.len());
            self.out.extend(&slice[..here]);
            room -= here;
            taken += here;
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends what was collected. Ready when there is nothing left; the library is to be polled once more when that is an error.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        if let Err(error) = ready!(self.poll_drain(cx)) {
            self.out.clear();
            self.failure = Some(error);
            return Poll::Ready(Err(Failed));
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut io = Pin::new(&mut self.io);
        while !self.out.is_empty() {
            let n = ready!(io.as_mut().poll_write(cx, self.out.rest()))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.advance(n);
        }
        io.poll_flush(cx)
    }
}

/// Sending has failed; the library learns why when it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Failed;

impl Pending {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    fn extend(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = buffers::take_vector();
        }
        // Moves each byte once at most, and bounds the vector.
        if self.done > 0 && self.done >= self.rest().len() {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn advance(&mut self, n: usize) {
        self.done += n;
        if self.done == self.bytes.len() {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.done = 0;
        buffers::give_vector(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        buffers::give_room(std::mem::take(&mut self.room));
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reader_that_is_always_behind_does_not_make_the_vector_grow() {
        let mut pending = Pending::default();
        let mut next = 0_u8;
        let mut expected = 0_u8;
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..100).map(|n| next.wrapping_add(n)).collect();
            next = next.wrapping_add(100);
            pending.extend(&bytes);
            let n = pending.rest().len().min(99);
            for byte in &pending.rest()[..n] {
                assert_eq!(*byte, expected);
                expected = expected.wrapping_add(1);
            }
            pending.advance(n);
        }
        assert_eq!(pending.rest().len(), 10_000);
        assert!(pending.bytes.len() <= 20_100, "{}", pending.bytes.len());
    }

    async fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(addr), listener.accept());
        (Wire::new(Io::plain(ours.unwrap())), theirs.unwrap().0)
    }

    async fn send(wire: &mut Wire) -> Result<(), Failed> {
        std::future::poll_fn(|cx| wire.poll_send(cx)).await
    }

    async fn read(wire: &mut Wire, at_most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; at_most];
        let mut buf = ReadBuf::new(&mut bytes);
        std::future::poll_fn(|cx| wire.poll_read(cx, &mut buf)).await?;
        Ok(buf.filled().to_vec())
    }

    #[tokio::test]
    async fn what_was_written_goes_at_once_when_it_is_sent() {
        let (mut wire, mut peer) = pair().await;
        for piece in ["one", "two"] {
            let slices = [IoSlice::new(piece.as_bytes())];
            let written = std::future::poll_fn(|cx| wire.poll_write(cx, &slices)).await;
            assert_eq!(written.unwrap(), 3);
        }
        let mut bytes = [0; 10];
        let nothing = peer.try_read(&mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        send(&mut wire).await.unwrap();
        assert_eq!(peer.read(&mut bytes).await.unwrap(), 6);
        assert!(wire.out.bytes.capacity() == 0, "the vector is given back");
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_handed_on_in_order() {
        let (mut wire, peer) = pair().await;
        peer.writable().await.unwrap();
        assert_eq!(peer.try_write(b"abcdefgh").unwrap(), 8);
        assert_eq!(read(&mut wire, 3).await.unwrap(), b"abc");
        drop(peer);
        assert_eq!(read(&mut wire, 3).await.unwrap(), b"def");
        assert_eq!(read(&mut wire, 3).await.unwrap(), b"gh");
        assert!(wire.ahead.is_none(), "the room is given back");
        assert_eq!(read(&mut wire, 3).await.unwrap(), b"");
    }

    #[tokio::test]
    async fn that_sending_failed_is_told_by_the_next_read() {
        let (mut wire, peer) = pair().await;
        peer.set_zero_linger().unwrap();
        drop(peer);
        // The reset has arrived when the socket says that it can be read.
        wire.io.tcp().readable().await.unwrap();
        let slices = [IoSlice::new(b"late")];
        let written = std::future::poll_fn(|cx| wire.poll_write(cx, &slices)).await;
        assert_eq!(written.unwrap(), 4);
        assert_eq!(send(&mut wire).await, Err(Failed));
        read(&mut wire, 3).await.unwrap_err();
        // It is not tried again.
        send(&mut wire).await.unwrap();
    }
}
