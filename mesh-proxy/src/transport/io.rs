//! [`Io`], the one type of byte stream in the proxy: plain TCP or TLS, with the bytes that
//! detection has read in front of it and the connection's counters attached. One concrete type, so
//! that nothing above it is generic or boxed.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::tls::TlsStream;
use crate::telemetry::tcp::OpenConnection;
use crate::tls::RecordStream;

/// A client that reads slowly would be given as much of each response as the kernel allows one
/// socket, 4 MiB; thousands of them use up what it has for all. What is on its way is not counted,
/// so that long paths stay full. Each time half of it is sent the writer is woken, which is why
/// bulk, with one peer, goes without. To clients that let themselves be sent 512 bytes at a time
/// the kernel needs more than twice the bytes, packet by packet: with 128 KiB 4,000 of them took
/// all that 24 GiB of memory have for TCP.
const MAX_UNSENT: u32 = 64 * 1024;

/// A connection. Dropping it closes it and counts the close.
#[derive(Debug)]
pub struct Io {
    stream: Stream,
    /// Read already, handed on before the stream is read again.
    replay: Bytes,
    open: Option<OpenConnection>,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(TlsStream),
}

impl Io {
    pub fn plain(tcp: TcpStream) -> Self {
        Self::new(Stream::Plain(tcp))
    }

    pub fn tls(stream: TlsStream) -> Self {
        Self::new(Stream::Tls(stream))
    }

    fn new(stream: Stream) -> Self {
        Self {
            stream,
            replay: Bytes::new(),
            open: None,
        }
    }

    /// Counts bytes, and the close when it is dropped, from now on. Replayed bytes are counted as
    /// they are handed on.
    #[must_use]
    pub fn measured(mut self, open: OpenConnection) -> Self {
        self.open = Some(open);
        self
    }

    /// Puts `bytes` behind what is waiting to be replayed.
    pub fn push_replay(&mut self, bytes: &[u8]) {
        if self.replay.is_empty() {
            self.replay = Bytes::copy_from_slice(bytes);
            return;
        }
        let mut joined = BytesMut::with_capacity(self.replay.len() + bytes.len());
        joined.extend_from_slice(&self.replay);
        joined.extend_from_slice(bytes);
        self.replay = joined.freeze();
    }

    /// What was read but not handed on.
    pub fn replay(&self) -> &[u8] {
        &self.replay
    }

    /// Forgets the first `n` replayed bytes: somebody has consumed them from [`Io::replay`].
    pub fn consume_replay(&mut self, n: usize) {
        self.replay.advance(n);
    }

    /// The socket under all layers.
    pub fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.tcp(),
        }
    }

    /// Lets no more than [`MAX_UNSENT`] wait in the socket that could not be sent yet.
    pub fn limit_unsent(&self) {
        // No socket of TCP refuses, and without it only more memory is used.
        let _refused = SockRef::from(self.tcp()).set_tcp_notsent_lowat(MAX_UNSENT);
    }

    /// The socket when no layer and no replayed byte lies above it, so that the kernel may move the
    /// bytes.
    pub(super) fn bare_tcp(&self) -> Option<&TcpStream> {
        match &self.stream {
            Stream::Plain(tcp) if self.replay.is_empty() => Some(tcp),
            _ => None,
        }
    }

    /// The socket when no layer lies above it: bytes may be written to it directly.
    pub(super) fn plain_tcp(&self) -> Option<&TcpStream> {
        match &self.stream {
            Stream::Plain(tcp) => Some(tcp),
            Stream::Tls(_) => None,
        }
    }

    /// The TLS connection when its records are ours to seal.
    pub(super) fn sealing(&mut self) -> Option<&mut RecordStream> {
        match &mut self.stream {
            Stream::Tls(TlsStream::Own(records)) => Some(records),
            Stream::Tls(TlsStream::Library(_)) | Stream::Plain(_) => None,
        }
    }

    /// The TLS connection when its records are ours to open and every byte opened before has been
    /// handed on.
    pub(super) fn opening(&mut self) -> Option<&mut RecordStream> {
        if !self.replay.is_empty() {
            return None;
        }
        self.sealing().filter(|records| records.is_drained())
    }

    /// Takes a connection that nobody measures yet apart: its socket, and what was read but not
    /// handed on. An error when it is not plain.
    pub fn into_plain(self) -> io::Result<(TcpStream, Bytes)> {
        match self.stream {
            Stream::Plain(tcp) => Ok((tcp, self.replay)),
            Stream::Tls(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "TLS within TLS cannot be taken apart",
            )),
        }
    }

    /// Whether what is read next may be in memory already: it was read for detection, or the
    /// library has opened a record.
    pub fn reads_ahead(&self) -> bool {
        !self.replay.is_empty() || matches!(self.stream, Stream::Tls(TlsStream::Library(_)))
    }

    pub fn is_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().peer_addr()
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().local_addr()
    }

    /// Reads past the replay. Detection uses this: what it reads becomes replay.
    pub(super) fn poll_read_stream(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }

    /// Reads once and lends what has come, in one piece or several, from where it lies; `room` is
    /// used where it lies nowhere. Returns how much it was: nothing at the end.
    pub fn poll_lend(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let read = if !self.replay.is_empty() {
            let replay = std::mem::take(&mut self.replay);
            take(&replay);
            Ok(replay.len())
        } else if let Stream::Tls(TlsStream::Own(records)) = &mut self.stream {
            ready!(records.poll_lend(cx, room.len(), take))
        } else {
            let mut buf = ReadBuf::new(room);
            let read = ready!(self.poll_read_stream(cx, &mut buf));
            take(buf.filled());
            read.map(|()| buf.filled().len())
        };
        match read {
            Ok(n) => {
                self.count_read(n);
                Poll::Ready(Ok(n))
            }
            Err(error) => Poll::Ready(Err(self.note_error(error))),
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

    /// Remembers why the connection ends, for the label of its close, and hands the error on.
    pub(super) fn note_error(&self, error: io::Error) -> io::Error {
        if let Some(open) = &self.open {
            open.failed(&error);
        }
        error
    }

    fn count_write(&self, written: io::Result<usize>) -> io::Result<usize> {
        match written {
            Ok(bytes) => {
                self.count_written(bytes);
                Ok(bytes)
            }
            Err(error) => Err(self.note_error(error)),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.replay.is_empty() {
            if let Err(error) = ready!(self.poll_read_stream(cx, buf)) {
                return Poll::Ready(Err(self.note_error(error)));
            }
        } else {
            let n = self.replay.len().min(buf.remaining());
            buf.put_slice(&self.replay[..n]);
            self.replay.advance(n);
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
            Stream::Tls(tls) => ready!(Pin::new(tls).poll_write(cx, bytes)),
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
            Stream::Tls(tls) => ready!(Pin::new(tls).poll_write_vectored(cx, slices)),
        };
        Poll::Ready(self.count_write(written))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(tcp) => tcp.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
