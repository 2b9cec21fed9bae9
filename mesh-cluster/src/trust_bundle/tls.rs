//! TLS to the server of a bundle, and the certificate authorities of the system.

use std::sync::Arc;
use std::{fmt, io};

use mesh_core::identity::Identity;
use mesh_k8s::foreign_domain::EndpointProfile;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, PeerIncompatible,
    RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    NoAuthorities(#[from] NoAuthorities),
    #[error("{0} has no valid certificate in PEM")]
    Authorities(&'static str),
    #[error("{0:?} is not the name of a server")]
    Name(String),
    #[error("TLS is not available")]
    Config(#[source] Error),
    #[error("the handshake failed")]
    Handshake(#[source] io::Error),
}

/// The system has no certificate authorities.
#[derive(Debug, thiserror::Error)]
#[error("no CA certificates in /etc/ssl/certs or SSL_CERT_FILE{0}")]
pub struct NoAuthorities(String);

/// Why a server is not the one that the ConfigMap names.
#[derive(thiserror::Error)]
#[error("its certificate has the identity {found}, expected {expected}")]
struct IdentityMismatch {
    expected: Identity,
    found: String,
}

/// rustls shows errors of verifiers by their debug form.
impl fmt::Debug for IdentityMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Accepts the server with one identity, whose chain ends at a root of its trust domain.
#[derive(Debug)]
struct SpiffeVerifier {
    expected: Identity,
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

/// Returns the certificate authorities of the system or, in a container, of the image.
pub fn system_authorities() -> Result<RootCertStore, NoAuthorities> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(loaded.certs);
    if store.is_empty() {
        let error = loaded.errors.first();
        let error = error.map_or_else(String::new, |error| format!(": {error}"));
        return Err(NoAuthorities(error));
    }
    Ok(store)
}

/// Completes a handshake with the server.
pub(super) async fn connect(
    stream: TcpStream,
    host: &str,
    profile: &EndpointProfile,
    trusted: &str,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_invalid| TlsError::Name(host.to_owned()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let config = match profile {
        EndpointProfile::Spiffe(expected) => {
            let verifier = SpiffeVerifier {
                expected: expected.clone(),
                roots: roots(trusted).ok_or(TlsError::Authorities("the last bundle"))?,
                provider,
            };
            builder
                .with_protocol_versions(&[&TLS13])
                .map_err(TlsError::Config)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
                .with_no_client_auth()
        }
        EndpointProfile::Web(authorities) => {
            let store = match authorities {
                Some(pem) => roots(pem).ok_or(TlsError::Authorities("endpoint-ca.crt"))?,
                None => system_authorities()?,
            };
            builder
                .with_safe_default_protocol_versions()
                .map_err(TlsError::Config)?
                .with_root_certificates(store)
                .with_no_client_auth()
        }
    };
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(TlsError::Handshake)
}

/// Returns at least one certificate.
fn roots(pem: &str) -> Option<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        store.add(certificate.ok()?).ok()?;
    }
    (!store.is_empty()).then_some(store)
}

impl ServerCertVerifier for SpiffeVerifier {
    /// Ignores the server name: the identity has another form.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        let found = uris(end_entity).ok_or(CertificateError::BadEncoding)?;
        if found != [self.expected.as_str()] {
            let mismatch = IdentityMismatch {
                expected: self.expected.clone(),
                found: format!("{found:?}"),
            };
            return Err(CertificateError::Other(OtherError(Arc::new(mismatch))).into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Returns the URIs among the names of a certificate.
fn uris(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let (_rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let uris = names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
    Some(uris.collect())
}
