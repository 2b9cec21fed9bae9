//! Fetching the certificate a proxy presents. The only place of the command line that names the TLS library.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

/// The chain that the proxy at `addr` presents to a client that asks for `name`, leaf first.
pub(crate) async fn presented_chain(addr: SocketAddr, name: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Shown { algorithms }))
        .with_no_client_auth();
    let server = ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name:?} is no server name"))?;
    let stream = TcpStream::connect(addr)
        .await
        .with_context(|| format!("connect to the proxy at {addr}"))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(server, stream)
        .await;
    let stream =
        stream.with_context(|| format!("TLS handshake with the proxy at {addr} as {name}"))?;
    let chain = stream
        .get_ref()
        .1
        .peer_certificates()
        .context("the proxy presented no certificate")?;
    Ok(chain
        .iter()
        .map(|certificate| certificate.to_vec())
        .collect())
}

/// Believes any chain, because the point is to look at it, expired and foreign ones too. The signature of the handshake is checked: whoever presents a
/// certificate has its key.
#[derive(Debug)]
struct Shown {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General(
            "proxies speak TLS 1.3 only".to_owned(),
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
