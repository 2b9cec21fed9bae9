//! [`Io`], the proxy's byte stream: plain TCP or TLS, preceded by the bytes that protocol detection
//! has read, with the connection's counters. A concrete type keeps its users free of generics and
//! boxes.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use mesh_runtime::bounded_buffer::{BoundedBuffer, Fill, Scan, Scanner};
use nix::libc;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Scratch;
use super::ends::{self, Close, Stage};
use super::socket::Socket;
use super::tls::{RecordStream, RustlsStream};
use crate::telemetry::tcp::OpenConnection;

/// `TCP_NOTSENT_LOWAT`: the most bytes in a socket's send buffer that are not in flight, so that a
/// long path stays full. Without it, the kernel buffers up to 4 MiB for each slow client, and
/// thousands of them exhaust the kernel's TCP memory. With clients that accept 512 bytes per
/// segment, the kernel needs more than twice the memory: with 128 KiB, 4,000 of them exhausted the
/// TCP memory of a machine with 24 GiB. The writer wakes up whenever half of it is sent, so bulk
/// transfers do not use the limit.
const MAX_UNSENT: u32 = 64 * 1024;

/// The most bytes that a peer can make a connection hold before it is authorized. The longest that
/// are waited for are a ClientHello, a request target and a transport header, each of 64 KiB, with
/// what precedes and follows them.
pub const MAX_REPLAY: usize = 66 * 1024;

/// A connection. Dropping it closes it and counts the close.
#[derive(Debug)]
pub struct Io {
    stream: Stream,
    /// Bytes that are read before the stream is read again; `None` if there are none. Boxed,
    /// because only connections whose protocol is detected have any, and only until they are
    /// served.
    replay: Option<Box<BoundedBuffer>>,
    open: Option<OpenConnection>,
    /// The kernel has reported that the connection is aborted. It does so once, for a read or a
    /// write; later reads return 0. Atomic for [`Sync`], never contended.
    is_aborted: AtomicBool,
}

/// TLS is boxed because a session takes a kilobyte, which would be part of every future that owns
/// an [`Io`].
#[derive(Debug)]
enum Stream {
    Plain(Socket),
    /// The inner [`Io`] replays the bytes that detection has read.
    Rustls(Box<RustlsStream<Io>>),
    Records(Box<RecordStream>),
}

impl Io {
    pub fn plain(tcp: impl Into<Socket>) -> Self {
        Self::new(Stream::Plain(tcp.into()))
    }

    pub(crate) fn rustls(stream: impl Into<RustlsStream<Self>>) -> Self {
        Self::new(Stream::Rustls(Box::new(stream.into())))
    }

    pub(crate) fn records(stream: RecordStream) -> Self {
        Self::new(Stream::Records(Box::new(stream)))
    }

    fn new(stream: Stream) -> Self {
        Self {
            stream,
            replay: None,
            open: None,
            is_aborted: AtomicBool::new(false),
        }
    }

    /// Counts bytes from now on, and the close on drop. Replayed bytes are counted when they are
    /// read.
    #[must_use]
    pub(crate) fn measured(mut self, open: OpenConnection) -> Self {
        self.open = Some(open);
        self
    }

    /// Reads once and appends the bytes to the replay, which holds at most [`MAX_REPLAY`].
    pub(super) fn poll_hold(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &Scratch,
    ) -> Poll<io::Result<Fill>> {
        let held = self.replay.take();
        let mut held = held.unwrap_or_else(|| Box::new(BoundedBuffer::new(MAX_REPLAY)));
        let filled = held.poll_fill(&mut scratch.borrow(), |buf| self.poll_read_stream(cx, buf));
        if !held.is_empty() {
            self.replay = Some(held);
        }
        filled
    }

    /// Passes the bytes of the replay that `scan` has not seen to its scanner.
    pub(super) fn scan<S: Scanner>(&mut self, scan: &mut Scan<S>) -> Option<S::Verdict> {
        self.replay.as_mut()?.scan(scan)
    }

    /// Puts `bytes`, which were read and not processed, in front of the replay.
    pub(crate) fn put_back(&mut self, bytes: BytesMut) {
        let held = self
            .replay
            .get_or_insert_with(|| Box::new(BoundedBuffer::new(MAX_REPLAY)));
        held.put_back(bytes);
    }

    /// The bytes that are read before the stream is read again.
    pub fn replay(&self) -> &[u8] {
        self.replay.as_deref().map_or(&[], |held| &held[..])
    }

    /// How many bytes were copied or scanned to hold the replay.
    #[cfg(feature = "fuzzing")]
    pub fn replay_work(&self) -> u32 {
        self.replay.as_deref().map_or(0, BoundedBuffer::work)
    }

    /// Removes the first `n` bytes of [`Io::replay`], which the caller has consumed.
    pub(super) fn consume_replay(&mut self, n: usize) {
        if let Some(held) = &mut self.replay {
            held.consume(n);
            if held.is_empty() {
                self.replay = None;
            }
        }
    }

    /// The underlying socket.
    pub(crate) fn tcp(&self) -> &Socket {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Rustls(tls) => tls.get_ref().0.tcp(),
            Stream::Records(records) => records.tcp(),
        }
    }

    /// Limits the unsent bytes in the socket's send buffer to [`MAX_UNSENT`].
    pub(crate) fn limit_unsent(&self) {
        self.tcp().limit_unsent(MAX_UNSENT);
    }

    /// Returns the socket of a plain connection without replayed bytes, for reads by splice.
    pub(super) fn bare_tcp(&self) -> Option<&Socket> {
        match &self.stream {
            Stream::Plain(tcp) if self.replay.is_none() => Some(tcp),
            _ => None,
        }
    }

    /// Returns the socket of a plain connection, for direct writes.
    pub(super) fn plain_tcp(&self) -> Option<&Socket> {
        match &self.stream {
            Stream::Plain(tcp) => Some(tcp),
            Stream::Rustls(_) | Stream::Records(_) => None,
        }
    }

    /// Returns the record stream of a TLS connection that has one, for writing.
    pub(crate) fn sealable(&mut self) -> Option<&mut RecordStream> {
        match &mut self.stream {
            Stream::Records(records) => Some(records),
            Stream::Rustls(_) | Stream::Plain(_) => None,
        }
    }

    /// Returns the record stream of a TLS connection that has one and has no buffered bytes, for
    /// reading.
    pub(super) fn openable(&mut self) -> Option<&mut RecordStream> {
        if self.replay.is_some() {
            return None;
        }
        self.sealable()
            .filter(|records| !records.has_buffered_plaintext())
    }

    /// Returns the socket and the replay of a plain connection whose bytes are not counted yet.
    pub fn into_plain(mut self) -> io::Result<(Socket, Bytes)> {
        match self.stream {
            Stream::Plain(tcp) => {
                let held = self.replay.take();
                Ok((
                    tcp,
                    held.map_or_else(Bytes::new, |mut held| held.take_all().freeze()),
                ))
            }
            Stream::Rustls(_) | Stream::Records(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "TLS within TLS is not supported",
            )),
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        !matches!(self.stream, Stream::Plain(_))
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().peer_addr()
    }

    /// Reads from the stream, ignoring the replay.
    #[inline]
    fn poll_read_stream(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Err(error) = ready!(self.stream.poll_read(cx, buf)) {
            return Poll::Ready(Err(self.record_error(error)));
        }
        if buf.filled().len() == before && buf.remaining() > 0 {
            self.check_end_of_stream()?;
        }
        Poll::Ready(Ok(()))
    }

    /// Fails if a read that returned nothing is the consequence of an earlier error, and not the
    /// peer's end of the stream. TLS has close_notify for this.
    pub(super) fn check_end_of_stream(&self) -> io::Result<()> {
        if matches!(self.stream, Stream::Plain(_)) && self.is_aborted.load(Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        Ok(())
    }

    /// See [`Socket::watch_revocation`].
    pub(crate) fn watch_revocation(&self, cx: &Context<'_>) -> io::Result<()> {
        self.tcp().watch_revocation(cx)
    }

    /// Makes the kernel reset the connection when it is dropped, so that the peer cannot take the
    /// close for the end of the stream.
    pub(crate) fn reset_on_close(&self) {
        self.tcp().close_with(Close::Rst);
    }

    /// Takes [`Io::reset_on_close`] back.
    pub(crate) fn end_on_close(&self) {
        self.tcp().close_with(Close::Fin);
    }

    /// States how far an accepted connection has come, which decides how its peer sees that it is
    /// dropped.
    pub(crate) fn enter(&self, stage: Stage) {
        self.tcp().close_with(stage.close());
    }

    /// Reads once and passes the bytes to `read`, in one piece or several. `buffer` is used when
    /// they are not in memory already. Returns how many there were: 0 at the end of the stream.
    pub(crate) fn poll_read_with(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        mut read: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let outcome = if let Some(held) = self.replay.take() {
            read(&held);
            Ok(held.len())
        } else if let Stream::Records(records) = &mut self.stream {
            ready!(records.poll_read_with(cx, buffer.len(), read))
        } else {
            let mut buf = ReadBuf::new(buffer);
            ready!(self.poll_read_stream(cx, &mut buf))?;
            read(buf.filled());
            Ok(buf.filled().len())
        };
        match outcome {
            Ok(n) => {
                self.count_read(n);
                Poll::Ready(Ok(n))
            }
            Err(error) => Poll::Ready(Err(self.record_error(error))),
        }
    }

    pub(super) fn count_read(&self, bytes: usize) {
        if let Some(open) = &self.open {
            open.read(bytes);
        }
    }

    pub(super) fn count_written(&self, bytes: usize) {
        if let Some(open) = &self.open {
            open.written(bytes);
        }
    }

    /// Records the error for the label of the connection's close and for later reads, and returns
    /// it.
    pub(super) fn record_error(&self, error: io::Error) -> io::Error {
        if ends::is_abort(&error) {
            self.is_aborted.store(true, Relaxed);
        }
        if let Some(open) = &self.open {
            open.failed(&error);
        }
        error
    }

    /// Returns the stream of a TLS connection whose records rustls handles.
    #[cfg(test)]
    pub(crate) fn rustls_stream(&mut self) -> Option<&mut RustlsStream<Self>> {
        match &mut self.stream {
            Stream::Rustls(tls) => Some(tls),
            Stream::Plain(_) | Stream::Records(_) => None,
        }
    }

    fn count_write(&self, written: io::Result<usize>) -> io::Result<usize> {
        match written {
            Ok(bytes) => {
                self.count_written(bytes);
                Ok(bytes)
            }
            Err(error) => Err(self.record_error(error)),
        }
    }
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Rustls(tls) => Pin::new(tls).poll_read(cx, buf),
            Self::Records(records) => Pin::new(records).poll_read(cx, buf),
        }
    }
}

impl AsMut<Self> for Io {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.replay.is_none() {
            ready!(self.poll_read_stream(cx, buf))?;
        } else {
            let n = self.replay().len().min(buf.remaining());
            buf.put_slice(&self.replay()[..n]);
            self.consume_replay(n);
        }
        self.count_read(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(tcp) => ready!(Pin::new(tcp).poll_write(cx, bytes)),
            Stream::Rustls(tls) => ready!(Pin::new(tls).poll_write(cx, bytes)),
            Stream::Records(records) => ready!(Pin::new(records).poll_write(cx, bytes)),
        };
        Poll::Ready(self.count_write(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            Stream::Plain(tcp) => ready!(Pin::new(tcp).poll_write_vectored(cx, slices)),
            Stream::Rustls(tls) => ready!(Pin::new(tls).poll_write_vectored(cx, slices)),
            Stream::Records(records) => ready!(Pin::new(records).poll_write_vectored(cx, slices)),
        };
        Poll::Ready(self.count_write(written))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(tcp) => tcp.is_write_vectored(),
            Stream::Rustls(tls) => tls.is_write_vectored(),
            Stream::Records(records) => records.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Rustls(tls) => Pin::new(tls).poll_flush(cx),
            Stream::Records(records) => Pin::new(records).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Rustls(tls) => Pin::new(tls).poll_shutdown(cx),
            Stream::Records(records) => Pin::new(records).poll_shutdown(cx),
        }
    }
}
