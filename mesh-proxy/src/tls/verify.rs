//! Whether a peer's certificate is acceptable: its chain, its one identity, and for servers whose
//! identity it is.

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

/// Accepts one server identity.
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
    /// `chains` must be of these anchors, and of servers only.
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
    /// The server name plays no part: what counts is the identity that discovery named, and for
    /// identities that are not DNS names the two differ.
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
        expect_identity(end_entity, &self.expected).map_err(refused)?;
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
    /// `chains` must be of these anchors, and of clients only.
    pub(super) fn new(anchors: &TrustAnchors, chains: Arc<VerifiedChains>) -> Result<Self, Error> {
        let chain = WebPkiClientVerifier::builder_with_provider(anchors.roots(), crypto::provider())
            // Clients of the mesh have one certificate; a list of roots would only lengthen each
            // handshake.
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
        identity_of(end_entity).map_err(refused)?;
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

/// Whether this chain of ours is what peers will accept: used before a certificate is put to work.
pub(super) fn verify_own(
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

/// The one identity of a certificate. Other kinds of subject alternative names (addresses,
/// mailboxes) do not count.
pub(super) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, PeerError> {
    let parsed = parse(certificate)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|_malformed| PeerError::Unreadable)?;
    let mut identities = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
            _ => None,
        });
    match (identities.next(), identities.count()) {
        (Some(only), 0) => Identity::parse(only).map_err(PeerError::Identity),
        (first, rest) => Err(PeerError::IdentityCount(
            usize::from(first.is_some()) + rest,
        )),
    }
}

/// Resuming a session skips the verification of the certificate that it began with. Its chain was
/// verified then, and sessions do not survive a change of anchors; what may have changed since is
/// the date.
pub(super) fn still_valid(certificate: &CertificateDer<'_>) -> Result<(), PeerError> {
    let not_after = not_after(certificate)?;
    if UnixTime::now().as_secs() > not_after {
        return Err(PeerError::Expired);
    }
    Ok(())
}

/// When a certificate expires, in seconds since the epoch.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Result<u64, PeerError> {
    validity(certificate).map(|validity| *validity.end())
}

/// From when until when a certificate is valid, in seconds since the epoch.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Result<RangeInclusive<u64>, PeerError> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    // Before 1970 is 1970: valid since then, or long expired.
    let seconds = |timestamp: i64| u64::try_from(timestamp).unwrap_or(0);
    Ok(seconds(validity.not_before.timestamp())..=seconds(validity.not_after.timestamp()))
}

pub(super) fn expect_identity(
    certificate: &CertificateDer<'_>,
    expected: &Identity,
) -> Result<(), PeerError> {
    let found = identity_of(certificate)?;
    if found == *expected {
        return Ok(());
    }
    Err(PeerError::Unexpected {
        expected: expected.clone(),
        found,
    })
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, PeerError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(PeerError::Unreadable),
    }
}

fn refused(error: PeerError) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}
