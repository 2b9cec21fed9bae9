//! The one place where the transport knows how a TLS stream is called. Made by [`crate::tls`], carried by [`super::Io`].

use super::Io;

/// A TLS session over a connection; the inner [`Io`] replays the bytes that detection has read.
pub type TlsStream = tokio_rustls::TlsStream<Io>;
