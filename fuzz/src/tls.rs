//! The targets with rustls as oracle, and their shared certificate and configurations, which accept
//! any peer.

use std::sync::Arc;

use mesh_test_support::tls::InsecureVerifier;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::{ClientConfig, ServerConfig, SupportedCipherSuite};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

pub(crate) mod handshake;
mod handshake_config;
pub(crate) mod hello;
pub(crate) mod records;
mod scripted_peer;

/// Returns a certificate in PEM for configurations that require a trust anchor.
pub(crate) fn anchors() -> String {
    certified().cert.pem()
}

fn certified() -> CertifiedKey<rcgen::KeyPair> {
    generate_simple_self_signed(["web.test".to_owned()]).expect("a certificate")
}

fn name() -> ServerName<'static> {
    ServerName::try_from("web.test").expect("a name")
}

/// Whether the shorter of both begins the longer.
fn has_same_prefix(one: &[u8], other: &[u8]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// The cipher suites of the proxy.
const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Configurations of a client and a server with one suite and secret extraction.
struct Configs {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Configs {
    fn new(suite: SupportedCipherSuite) -> Self {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![suite],
            // The fastest group. The records do not depend on it.
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
            .with_custom_certificate_verifier(Arc::new(InsecureVerifier))
            .with_no_client_auth();
        client.enable_secret_extraction = true;
        // Otherwise, a ticket of one input would be part of the next input's ClientHello.
        client.resumption = Resumption::disabled();
        Self {
            client: Arc::new(client),
            server: Arc::new(server),
        }
    }
}
