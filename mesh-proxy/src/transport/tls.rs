//! The one place where the transport knows how a TLS stream is called. Made by [`crate::tls`],
//! carried by [`super::Io`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Io;
use crate::tls::RecordStream;

/// A TLS session over a connection. Boxed: a session is a kilobyte, and every future that holds an
/// [`Io`] would carry it.
#[derive(Debug)]
pub enum TlsStream {
    /// The library makes the records; the inner [`Io`] replays the bytes that detection has read.
    Library(Box<tokio_rustls::TlsStream<Io>>),
    /// We do.
    Own(Box<RecordStream>),
}

impl TlsStream {
    /// The socket below.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Library(stream) => stream.get_ref().0.tcp(),
            Self::Own(stream) => stream.tcp(),
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
            Self::Library(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Own(stream) => Pin::new(stream).poll_read(cx, buf),
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
            Self::Library(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Own(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Library(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Own(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Library(stream) => stream.is_write_vectored(),
            Self::Own(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Library(stream) => Pin::new(stream).poll_flush(cx),
            Self::Own(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Library(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Own(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
