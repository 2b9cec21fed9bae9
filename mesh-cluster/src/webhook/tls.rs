//! TLS of the servers that the API server connects to: TLS 1.3 only, with a replaceable
//! certificate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server};

use super::certificate::CertificateAndKey;

/// The current certificate.
#[derive(Debug, Default)]
pub struct ServingCertificate {
    // Read by each handshake, written when the certificate changes.
    certified: ArcSwapOption<CertifiedKey>,
}

/// Terminates TLS.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

pub struct TlsStream(server::TlsStream<TcpStream>);

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

impl ServingCertificate {
    /// Replaces the certificate for later handshakes.
    pub fn set(&self, pair: &CertificateAndKey) -> Result<(), rustls::Error> {
        let provider = aws_lc_rs::default_provider();
        let chain = pair.chain().to_vec();
        // Fails if the key does not match the certificate.
        let certified = CertifiedKey::from_der(chain, pair.key(), &provider)?;
        self.certified.store(Some(Arc::new(certified)));
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified.load_full()
    }
}

impl Acceptor {
    /// Clients have no certificates.
    pub fn new(serving: Arc<ServingCertificate>) -> Self {
        Self::verifying(serving, Arc::new(NoClientAuth))
    }

    /// Clients have no certificates, and get HTTP/1 only.
    pub fn http1(serving: Arc<ServingCertificate>) -> Self {
        Self::offering(serving, Arc::new(NoClientAuth), &[HTTP1])
    }

    pub fn verifying(
        serving: Arc<ServingCertificate>,
        clients: Arc<dyn ClientCertVerifier>,
    ) -> Self {
        Self::offering(serving, clients, &[HTTP2, HTTP1])
    }

    fn offering(
        serving: Arc<ServingCertificate>,
        clients: Arc<dyn ClientCertVerifier>,
        protocols: &[&[u8]],
    ) -> Self {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config =
            match ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]) {
                Ok(builder) => builder
                    .with_client_cert_verifier(clients)
                    .with_cert_resolver(serving),
                // The provider is compiled in and supports TLS 1.3.
                Err(error) => unreachable!("TLS 1.3 is not supported: {error}"),
            };
        config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
        // API servers keep connections open, so session resumption is of no use.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Self(TlsAcceptor::from(Arc::new(config)))
    }

    /// Completes the handshake of a client.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream> {
        // Boxed, because the large state of the handshake would stay in the connection's future.
        Box::pin(self.0.accept(stream)).await.map(TlsStream)
    }
}

impl TlsStream {
    pub fn is_http2(&self) -> bool {
        self.0.get_ref().1.alpn_protocol() == Some(HTTP2)
    }

    /// Returns the verified certificate of the client, if it has one.
    pub fn client_certificate(&self) -> Option<CertificateDer<'static>> {
        let chain = self.0.get_ref().1.peer_certificates()?;
        chain.first().map(|leaf| leaf.clone().into_owned())
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    /// Hyper copies its output where this is not supported, and the copy would not count as a
    /// response that has not been sent.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
