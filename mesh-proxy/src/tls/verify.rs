//! Verification of a peer's certificate: its chain, that it holds exactly one identity, and for
//! servers that the identity is the expected one.

use std::ops::RangeInclusive;
use std::sync::Arc;

use mesh_core::identity::Identity;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::chains::VerifiedChains;
use super::crypto;
use super::error::PeerError;
use super::trust::TrustAnchors;

/// Accepts servers with one identity.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    expected: Identity,
    roots: Arc<RootCertStore>,
    chains: Arc<VerifiedChains>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Accepts any client of the mesh, and clients without a certificate.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    chains: Arc<VerifiedChains>,
}

impl ServerVerifier {
    /// Creates a verifier. `chains` must belong to these anchors and to servers.
    pub(super) fn new(
        expected: Identity,
        anchors: &TrustAnchors,
        chains: Arc<VerifiedChains>,
    ) -> Self {
        Self {
            expected,
            roots: anchors.roots(),
            chains,
            algorithms: crypto::provider().signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    /// Ignores the server name: discovery names the identity, which differs from the server name
    /// when it is not a DNS name.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.chains.verify(end_entity, intermediates, now, || {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                &self.roots,
                intermediates,
                now,
                self.algorithms.all,
            )
        })?;
        check_identity(end_entity, &self.expected).map_err(rejection)?;
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
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientVerifier {
    /// Creates a verifier. `chains` must belong to these anchors and to clients.
    pub(super) fn new(anchors: &TrustAnchors, chains: Arc<VerifiedChains>) -> Result<Self, Error> {
        let chain = WebPkiClientVerifier::builder_with_provider(anchors.roots(), crypto::provider())
            // Clients of the mesh have one certificate, so a list of acceptable issuers would only
            // lengthen each handshake.
            .clear_root_hint_subjects()
            .allow_unauthenticated()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { chain, chains })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.chains.verify(end_entity, intermediates, now, || {
            self.chain
                .verify_client_cert(end_entity, intermediates, now)
                .map(|_verified| ())
        })?;
        identity_of(end_entity).map_err(rejection)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Verifies the proxy's own chain as a peer would, before the certificate is used.
pub(super) fn verify_own_chain(
    chain: &[CertificateDer<'_>],
    id: &Identity,
    anchors: &TrustAnchors,
) -> Result<(), Error> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(Error::NoCertificatesPresented);
    };
    let name = ServerName::try_from("own.certificate")
        .map_err(|error| Error::General(error.to_string()))?;
    ServerVerifier::new(id.clone(), anchors, Arc::default())
        .verify_server_cert(leaf, intermediates, &name, &[], UnixTime::now())
        .map(|_| ())
}

/// Returns the identity of a certificate. Subject alternative names that are neither DNS names nor
/// URIs are ignored.
pub(super) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, PeerError> {
    let parsed = parse(certificate)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|_malformed| PeerError::Malformed)?;
    let mut identities = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
            _ => None,
        });
    match (identities.next(), identities.count()) {
        (Some(only), 0) => Identity::parse(only).map_err(PeerError::InvalidIdentity),
        (first, rest) => Err(PeerError::WrongIdentityCount(
            usize::from(first.is_some()) + rest,
        )),
    }
}

/// Checks that the certificate of a resumed session has not expired. Resumption does not verify it
/// again; its chain is still valid because sessions do not outlive a change of anchors.
pub(super) fn check_not_expired(certificate: &CertificateDer<'_>) -> Result<(), PeerError> {
    let not_after = not_after(certificate)?;
    if UnixTime::now().as_secs() > not_after {
        return Err(PeerError::Expired);
    }
    Ok(())
}

/// Returns when a certificate expires, in seconds since the Unix epoch.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Result<u64, PeerError> {
    validity(certificate).map(|validity| *validity.end())
}

/// Returns the validity period of a certificate, in seconds since the Unix epoch.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Result<RangeInclusive<u64>, PeerError> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    // Times before 1970 become 1970, which is long ago as a start and as an end.
    let seconds = |timestamp: i64| u64::try_from(timestamp).unwrap_or(0);
    Ok(seconds(validity.not_before.timestamp())..=seconds(validity.not_after.timestamp()))
}

pub(super) fn check_identity(
    certificate: &CertificateDer<'_>,
    expected: &Identity,
) -> Result<(), PeerError> {
    let found = identity_of(certificate)?;
    if found == *expected {
        return Ok(());
    }
    Err(PeerError::IdentityMismatch {
        expected: expected.clone(),
        found,
    })
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(PeerError::Malformed),
    }
}

fn rejection(error: PeerError) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}
