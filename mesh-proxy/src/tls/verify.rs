//! Verification of a peer's certificate: its chain, that it holds exactly one identity, and for
//! servers that the identity is the expected one.

use std::sync::Arc;

use mesh_core::identity::Identity;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::chains::VerifiedChains;
use super::error::PeerError;
use super::trust::TrustAnchors;
use super::{certificate, crypto};

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
    anchors: TrustAnchors,
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
            roots: anchors.roots_of(&expected).store(),
            expected,
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
        certificate::check_identity(end_entity, &self.expected).map_err(rejection)?;
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
    pub(super) fn new(anchors: &TrustAnchors, chains: Arc<VerifiedChains>) -> Self {
        Self {
            anchors: anchors.clone(),
            chains,
        }
    }

    fn of_mesh(&self) -> &dyn ClientCertVerifier {
        self.anchors.roots_of_mesh().clients()
    }

    /// Returns the verifier of a client's chain, which its name decides.
    fn verifier_of(
        &self,
        end_entity: &CertificateDer<'_>,
    ) -> Result<&dyn ClientCertVerifier, Error> {
        // Without other anchors no unverified certificate is read for its name.
        if self.anchors.are_only_of_mesh() {
            return Ok(self.of_mesh());
        }
        let id = certificate::identity_of(end_entity).map_err(rejection)?;
        Ok(self.anchors.roots_of(&id).clients())
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.of_mesh().client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.of_mesh().root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.chains.verify(end_entity, intermediates, now, || {
            self.verifier_of(end_entity)?
                .verify_client_cert(end_entity, intermediates, now)
                .map(|_verified| ())
        })?;
        certificate::identity_of(end_entity).map_err(rejection)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_mesh().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.of_mesh().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_mesh().supported_verify_schemes()
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

fn rejection(error: PeerError) -> Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}
