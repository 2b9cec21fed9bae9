//! The TLS streams of [`super::Io`], which [`crate::tls`] creates. The only module of the transport
//! that names their types.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Io;
use crate::tls::RecordStream;

/// A TLS stream. Boxed because a session takes a kilobyte, which would be part of every future that
/// owns an [`Io`].
#[derive(Debug)]
pub enum TlsStream {
    /// rustls handles the records; the inner [`Io`] replays the bytes that detection has read.
    Rustls(Box<tokio_rustls::TlsStream<Io>>),
    /// [`RecordStream`] handles the records.
    Record(Box<RecordStream>),
}

impl TlsStream {
    /// The underlying socket.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Rustls(stream) => stream.get_ref().0.tcp(),
            Self::Record(stream) => stream.tcp(),
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Rustls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Record(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Rustls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Record(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Rustls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Record(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Rustls(stream) => stream.is_write_vectored(),
            Self::Record(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Rustls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Record(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Rustls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Record(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
