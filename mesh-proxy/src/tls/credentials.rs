//! [`Credentials`]: a certificate and the TLS configurations that use it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_core::identity::Identity;
use rustls::client::{ClientConfig, ResolvesClientCert, Resumption};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::CertificateDer;

use super::chains::VerifiedChains;
use super::csr::CertificateRequest;
use super::error::{CredentialsError, TlsError};
use super::peers::Peers;
use super::sessions::{ClientConfigs, SessionKey, TicketStore};
use super::trust::{DomainBundles, TrustAnchors};
use super::verify::{self, ClientVerifier, ServerVerifier};
use super::{certificate, crypto};
use crate::transport::header;
use crate::transport::revocation::{Admission, Reason};

/// A certificate that was issued to this proxy.
#[derive(Clone, Debug)]
pub(crate) struct IssuedCertificate {
    /// In DER.
    pub(crate) leaf: Vec<u8>,
    /// In DER, starting with the leaf's issuer.
    pub(crate) intermediates: Vec<Vec<u8>>,
}

/// A certificate with its key, and the TLS configurations built from them. Immutable.
#[derive(Debug)]
pub(crate) struct Credentials {
    id: Identity,
    server_name: Arc<str>,
    not_after: SystemTime,
    generation: u64,
    anchors: TrustAnchors,
    peers: Peers,
    certificate: Arc<SingleCertAndKey>,
    certified: Arc<CertifiedKey>,
    server: Arc<ServerConfig>,
    server_transport: Arc<ServerConfig>,
    clients: ClientConfigs,
    /// Verified chains of the servers that this proxy has connected to.
    server_chains: Arc<VerifiedChains>,
}

impl Credentials {
    /// Verifies the certificate that was issued for `request` as a peer would and builds the TLS
    /// configurations.
    pub(crate) fn new(
        id: &Identity,
        server_name: &Arc<str>,
        request: CertificateRequest,
        issued: &IssuedCertificate,
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let chain = std::iter::once(&issued.leaf)
            .chain(&issued.intermediates)
            .map(|der| CertificateDer::from(der.clone()))
            .collect();
        let key = request.into_key().map_err(CredentialsError::WrongKey)?;
        Self::from_chain(id, server_name, chain, key, anchors, generation)
    }

    /// Verifies a certificate chain with its key as a peer would, and builds the TLS
    /// configurations.
    pub(super) fn from_chain(
        id: &Identity,
        server_name: &Arc<str>,
        chain: Vec<CertificateDer<'static>>,
        key: Arc<dyn SigningKey>,
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(error) => return Err(CredentialsError::WrongKey(error)),
        }
        Self::from_certified_key(id, server_name, Arc::new(certified), anchors, generation)
    }

    /// Returns credentials with the same certificate and other trust anchors. Fails when the
    /// certificate does not chain to them.
    pub(crate) fn with_anchors(
        &self,
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let certified = self.certified.clone();
        Self::from_certified_key(&self.id, &self.server_name, certified, anchors, generation)
    }

    pub(super) fn from_certified_key(
        id: &Identity,
        server_name: &Arc<str>,
        certified: Arc<CertifiedKey>,
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let leaf = certified
            .end_entity_cert()
            .map_err(CredentialsError::NotTrusted)?;
        let found = certificate::identity_of(leaf).map_err(CredentialsError::InvalidCertificate)?;
        if found != *id {
            return Err(CredentialsError::WrongIdentity {
                expected: id.clone(),
                found,
            });
        }
        verify::verify_own_chain(&certified.cert, id, anchors)
            .map_err(CredentialsError::NotTrusted)?;
        let not_after =
            certificate::not_after(leaf).map_err(CredentialsError::InvalidCertificate)?;

        let certificate = Arc::new(SingleCertAndKey::from(certified.clone()));
        let client_chains = Arc::<VerifiedChains>::default();
        let server = build_server_config(&certificate, anchors, &client_chains, false)?;
        let server_transport = build_server_config(&certificate, anchors, &client_chains, true)?;
        Ok(Self {
            id: id.clone(),
            server_name: server_name.clone(),
            not_after: UNIX_EPOCH + Duration::from_secs(not_after),
            generation,
            anchors: anchors.clone(),
            peers: Peers::default(),
            certificate,
            certified,
            server,
            server_transport,
            clients: ClientConfigs::default(),
            server_chains: Arc::default(),
        })
    }

    /// Admits connections by these peers from now on.
    #[must_use]
    pub(crate) fn with_peers(mut self, peers: &Peers) -> Self {
        self.peers = peers.clone();
        self
    }

    pub(crate) fn id(&self) -> &Identity {
        &self.id
    }

    /// The server name (SNI) of this proxy for its peers. TLS with another name is not terminated.
    pub(crate) fn server_name(&self) -> &str {
        &self.server_name
    }

    /// Returns when the leaf certificate expires.
    pub(crate) fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The generation, which increases with each certificate and each change of trust anchors.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the certificate chains to the anchors of the mesh, without those of trust domains.
    /// Peers that have no bundle of its trust domain know no others.
    pub(crate) fn is_trusted_in_mesh(&self) -> bool {
        let mesh = self.anchors.with_domains(DomainBundles::default());
        verify::verify_own_chain(&self.certified.cert, &self.id, &mesh).is_ok()
    }

    /// Admits a connection with a verified peer, also of a resumed session. It ends when the peer
    /// is denied, and with the trust in the peer's domain, if that is a foreign one.
    pub(super) fn admit(&self, peer: &Identity) -> Result<Arc<Admission>, TlsError> {
        let domain = self.anchors.revocation_of(peer);
        self.peers
            .admit(peer, domain)
            .map_err(|reason| match reason {
                Reason::TrustDomain => TlsError::Revoked(peer.clone()),
                Reason::Denied => TlsError::Denied(peer.clone()),
            })
    }

    #[cfg(test)]
    pub(crate) fn anchors(&self) -> &TrustAnchors {
        &self.anchors
    }

    pub(super) fn server_config(&self, alpn: bool) -> Arc<ServerConfig> {
        if alpn {
            self.server_transport.clone()
        } else {
            self.server.clone()
        }
    }

    pub(super) fn client_config(&self, session: &SessionKey) -> Result<Arc<ClientConfig>, Error> {
        self.clients.get_or_create(session, || {
            let peer = session.peer.id.clone();
            let verifier = ServerVerifier::new(peer, &self.anchors, self.server_chains.clone());
            build_client_config(&self.certificate, verifier, session.alpn)
        })
    }
}

fn build_server_config(
    certificate: &Arc<SingleCertAndKey>,
    anchors: &TrustAnchors,
    chains: &Arc<VerifiedChains>,
    alpn: bool,
) -> Result<Arc<ServerConfig>, CredentialsError> {
    let verifier = ClientVerifier::new(anchors, chains.clone());
    let resolver: Arc<dyn ResolvesServerCert> = certificate.clone();
    let mut config = ServerConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(crypto::VERSIONS)
        .map_err(CredentialsError::Setup)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(resolver);
    // The ticket key belongs to this configuration, so a ticket from before a change of trust
    // anchors or from the other configuration is never accepted. One ticket per connection is
    // enough because a client uses each once.
    config.ticketer = Ticketer::new().map_err(CredentialsError::Setup)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    // `RecordStream` needs the traffic secrets.
    config.enable_secret_extraction = true;
    if alpn {
        config.alpn_protocols = vec![header::ALPN.to_vec()];
    }
    Ok(Arc::new(config))
}

fn build_client_config(
    certificate: &Arc<SingleCertAndKey>,
    verifier: ServerVerifier,
    alpn: bool,
) -> Result<Arc<ClientConfig>, Error> {
    let resolver: Arc<dyn ResolvesClientCert> = certificate.clone();
    let mut config = ClientConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(crypto::VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(resolver);
    config.resumption = Resumption::store(Arc::new(TicketStore::default()));
    // `RecordStream` needs the traffic secrets.
    config.enable_secret_extraction = true;
    if alpn {
        config.alpn_protocols = vec![header::ALPN.to_vec()];
    }
    Ok(Arc::new(config))
}
