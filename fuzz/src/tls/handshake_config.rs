//! Configurations of handshakes whose messages always have the same length: one certificate,
//! signatures of one length, and one group.

use std::sync::Arc;

use mesh_test_support::tls::sealing;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::client::Resumption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};

use super::{InsecureVerifier, SUITES};

/// Configurations of clients and servers, for the proxy and for its peer.
pub(super) struct Configs {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) peer_client: Arc<ClientConfig>,
    pub(super) peer_server: Arc<ServerConfig>,
}

impl Configs {
    /// With `is_retried`, the client's first key share has a group that the server does not
    /// support. With `has_client_id`, the client has a certificate.
    pub(super) fn new(is_retried: bool, has_client_id: bool) -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let certificate = CertificateParams::new(vec!["web.test".to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let identity = Identity {
            certificate: certificate.der().clone(),
            key: key.serialize_der(),
        };
        let client_groups = if is_retried {
            vec![kx_group::SECP256R1, kx_group::X25519]
        } else {
            vec![kx_group::X25519]
        };
        let client_id = has_client_id.then_some(&identity);
        let [client_provider, server_provider] =
            [client_groups, vec![kx_group::X25519]].map(|groups| CryptoProvider {
                cipher_suites: vec![SUITES[0]],
                kx_groups: groups,
                ..aws_lc_rs::default_provider()
            });
        Self {
            client: client(Arc::new(client_provider.clone()), client_id),
            server: server(Arc::new(server_provider.clone()), &identity),
            peer_client: client(sealing::provider(client_provider), client_id),
            peer_server: server(sealing::provider(server_provider), &identity),
        }
    }
}

struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Identity {
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

fn client(provider: Arc<CryptoProvider>, identity: Option<&Identity>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(InsecureVerifier));
    let mut config = match identity {
        Some(identity) => builder
            .with_client_auth_cert(identity.chain(), identity.key())
            .expect("a certificate and its key"),
        None => builder.with_no_client_auth(),
    };
    config.enable_secret_extraction = true;
    // Otherwise, a ticket of one input would be part of the next input's ClientHello.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

fn server(provider: Arc<CryptoProvider>, identity: &Identity) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(Arc::new(AnyClient))
        .with_single_cert(identity.chain(), identity.key())
        .expect("a certificate and its key");
    config.enable_secret_extraction = true;
    Arc::new(config)
}

/// Requests a certificate like the proxy, and accepts any or none.
#[derive(Debug)]
struct AnyClient;

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
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
        vec![SignatureScheme::ED25519]
    }
}
