//! The targets that hold the proxy against the TLS library, and what they share: a certificate and
//! configurations with which anybody may speak to anybody.

use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme, SupportedCipherSuite,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};

pub(crate) mod handshake;
mod handshake_config;
pub(crate) mod hello;
mod puppet;
pub(crate) mod records;

/// One certificate, as PEM, for whoever has to be configured with an anchor.
pub(crate) fn anchors() -> String {
    certified().cert.pem()
}

fn certified() -> CertifiedKey<rcgen::KeyPair> {
    generate_simple_self_signed(["web.test".to_owned()]).expect("a certificate")
}

/// The suites that the proxy offers.
const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Both sides of a connection with one suite. Their keys can be taken over.
struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Configs {
    fn new(suite: SupportedCipherSuite) -> Self {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![suite],
            // The quickest. What is agreed on does not matter for what comes after it.
            kx_groups: vec![kx_group::X25519],
            ..aws_lc_rs::default_provider()
        });
        let versions = [&rustls::version::TLS13];
        let certified = certified();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(
            certified.signing_key.serialize_der(),
        ));
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&versions)
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .expect("a certificate and its key");
        server.enable_secret_extraction = true;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        client.enable_secret_extraction = true;
        // A ticket that one input has sent would be in the hello of the next ones.
        client.resumption = Resumption::disabled();
        Self {
            client: Arc::new(client),
            server: Arc::new(server),
        }
    }
}

/// Takes every server for the right one: handshakes are not what is fuzzed, and verifying them
/// would take most of the time.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".into()))
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ED25519,
        ]
    }
}
