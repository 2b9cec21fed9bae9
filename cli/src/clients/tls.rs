//! Fetches the certificate chain that a proxy or a webhook presents, and verifies chains as a
//! client does; [`TlsClient`] connects to proxies. The only module of the CLI that uses rustls.

mod client;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rcgen::KeyPair;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::clients::connection::Connection;
use crate::exit::Failure;

pub(crate) use self::client::{CertificateRequest, TlsClient};

/// A handshake takes one round trip and a signature.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the chain, leaf first and in DER, that the server presents to a client that requests
/// `name`.
pub(crate) async fn fetch_chain(
    connection: Connection,
    name: &str,
) -> anyhow::Result<Vec<Vec<u8>>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(InsecureVerifier { algorithms }))
        .with_no_client_auth();
    let server = ServerName::try_from(name.to_owned())
        .with_context(|| format!("{name:?} is not a valid server name"))?;
    let handshake = TlsConnector::from(Arc::new(config)).connect(server, connection.io);
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .map_err(|_elapsed| {
            Failure::TimedOut(format!(
                "no TLS handshake as {name} within {} s",
                HANDSHAKE_TIMEOUT.as_secs()
            ))
        })?;
    let stream = stream.with_context(|| format!("TLS handshake as {name}"))?;
    let chain = stream
        .get_ref()
        .1
        .peer_certificates()
        .context("the server presented no certificate")?;
    Ok(chain
        .iter()
        .map(|certificate| certificate.to_vec())
        .collect())
}

/// Verifies a chain for `name` at the time `now`, as a client does that trusts `anchors`. All
/// certificates are in DER.
pub(crate) fn verify_chain(
    chain: &[Vec<u8>],
    anchors: &[Vec<u8>],
    name: &str,
    now: u64,
) -> Result<(), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        anchors
            .iter()
            .map(|der| CertificateDer::from(der.as_slice())),
    );
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| error.to_string())?;
    let certificates: Vec<CertificateDer<'_>> = chain
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    let Some((leaf, intermediates)) = certificates.split_first() else {
        return Err("the chain is empty".to_owned());
    };
    let server = ServerName::try_from(name).map_err(|error| error.to_string())?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    let result = verifier.verify_server_cert(leaf, intermediates, &server, &[], now);
    result
        .map(|_verified| ())
        .map_err(|error| error.to_string())
}

/// Reads the first private key of a PEM file. OpenSSL writes `EC PARAMETERS` before a key of an
/// elliptic curve, which the key repeats.
pub(crate) fn read_key(pem: &[u8]) -> Option<KeyPair> {
    let der = PrivateKeyDer::from_pem_slice(pem).ok()?;
    KeyPair::try_from(&der).ok()
}

/// Checks that the private key (PEM) matches the certificate (DER).
pub(crate) fn check_key_matches(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
    let chain = vec![CertificateDer::from(certificate.to_vec())];
    CertifiedKey::from_der(chain, key, &provider)
        .map(|_pair| ())
        .map_err(|error| error.to_string())
}

/// Accepts any chain, because expired and foreign chains are to be shown, too. The handshake
/// signature is verified, so that the server must hold the private key of the leaf.
#[derive(Debug)]
struct InsecureVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for InsecureVerifier {
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
            "proxies support only TLS 1.3".to_owned(),
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
