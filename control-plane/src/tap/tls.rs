//! TLS of the tap API: TLS 1.3, with the certificate of the API server's front proxy verified if
//! the client has one.

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::front_proxy::FrontProxy;
use crate::webhook::ServingCertificate;

/// Why the authorities of the front proxy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsConfigError {
    #[error("an authority of the front proxy is not a certificate")]
    Authority(#[source] rustls::Error),
    #[error("the authorities of the front proxy cannot verify clients")]
    Verifier(#[from] VerifierBuilderError),
    #[error("TLS 1.3 is not supported")]
    Version(#[source] rustls::Error),
}

/// Terminates TLS of clients.
#[derive(Clone)]
pub(crate) struct Acceptor(TlsAcceptor);

/// A connection, with what the handshake told of the client.
pub(crate) struct Accepted {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) is_http2: bool,
    /// The verified certificate of the client.
    pub(crate) leaf: Option<CertificateDer<'static>>,
}

const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

impl Acceptor {
    pub(crate) fn new(
        serving: Arc<ServingCertificate>,
        front_proxy: &FrontProxy,
    ) -> Result<Self, TlsConfigError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in &front_proxy.authorities {
            roots
                .add(authority.clone())
                .map_err(TlsConfigError::Authority)?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(TlsConfigError::Version)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(serving);
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) async fn accept(&self, tcp: TcpStream) -> io::Result<Accepted> {
        // Boxed, because the large state of the handshake would stay in the connection's future.
        let stream = Box::pin(self.0.accept(tcp)).await?;
        let session = stream.get_ref().1;
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        Ok(Accepted {
            is_http2: session.alpn_protocol() == Some(HTTP2),
            leaf: leaf.map(|leaf| leaf.clone().into_owned()),
            stream,
        })
    }
}
