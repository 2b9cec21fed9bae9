//! [`Credentials`]: one certificate put to work.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_core::identity::Identity;
use rustls::client::{ClientConfig, ResolvesClientCert, Resumption};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::CertificateDer;

use super::chains::VerifiedChains;
use super::error::CredentialsError;
use super::request::SigningRequest;
use super::sessions::{ClientConfigs, Target, Tickets};
use super::trust::TrustAnchors;
use super::verify::{self, ClientVerifier, ServerVerifier};
use super::{TRANSPORT_ALPN, crypto};

/// What the identity service answered.
#[derive(Clone, Debug)]
pub struct Issued {
    /// DER.
    pub leaf: Vec<u8>,
    /// DER, from the leaf's issuer upwards.
    pub intermediates: Vec<Vec<u8>>,
}

/// A certificate with its key, and the TLS configurations made from them. Immutable.
#[derive(Debug)]
pub struct Credentials {
    id: Identity,
    server_name: Arc<str>,
    not_after: SystemTime,
    generation: u64,
    anchors: TrustAnchors,
    certificate: Arc<SingleCertAndKey>,
    certified: Arc<CertifiedKey>,
    server: Arc<ServerConfig>,
    server_transport: Arc<ServerConfig>,
    clients: ClientConfigs,
    /// Of servers that were dialled.
    server_chains: Arc<VerifiedChains>,
}

impl Credentials {
    /// Checks what was issued for `request` as a peer would, and sets TLS up with it.
    pub fn new(
        id: &Identity,
        server_name: &Arc<str>,
        request: SigningRequest,
        issued: &Issued,
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let chain: Vec<_> = std::iter::once(&issued.leaf)
            .chain(&issued.intermediates)
            .map(|der| CertificateDer::from(der.clone()))
            .collect();
        let key = request.into_key().map_err(CredentialsError::WrongKey)?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(error) => return Err(CredentialsError::WrongKey(error)),
        }
        Self::with_key(id, server_name, Arc::new(certified), anchors, generation)
    }

    /// The same certificate under other trust anchors. Fails when it does not chain to them.
    pub fn under(&self, anchors: &TrustAnchors, generation: u64) -> Result<Self, CredentialsError> {
        let certified = self.certified.clone();
        Self::with_key(&self.id, &self.server_name, certified, anchors, generation)
    }

    fn with_key(
        id: &Identity,
        server_name: &Arc<str>,
        certified: Arc<CertifiedKey>,
        anchors: &TrustAnchors,
        generation: u64,
    ) -> Result<Self, CredentialsError> {
        let leaf = certified
            .end_entity_cert()
            .map_err(CredentialsError::NotTrusted)?;
        let found = verify::identity_of(leaf).map_err(CredentialsError::Unusable)?;
        if found != *id {
            return Err(CredentialsError::WrongIdentity {
                expected: id.clone(),
                found,
            });
        }
        verify::verify_own(&certified.cert, id, anchors).map_err(CredentialsError::NotTrusted)?;
        let not_after = verify::not_after(leaf).map_err(CredentialsError::Unusable)?;

        let certificate = Arc::new(SingleCertAndKey::from(certified.clone()));
        let client_chains = Arc::<VerifiedChains>::default();
        let server = server_config(&certificate, anchors, &client_chains, false)?;
        let server_transport = server_config(&certificate, anchors, &client_chains, true)?;
        Ok(Self {
            id: id.clone(),
            server_name: server_name.clone(),
            not_after: UNIX_EPOCH + Duration::from_secs(not_after),
            generation,
            anchors: anchors.clone(),
            certificate,
            certified,
            server,
            server_transport,
            clients: ClientConfigs::default(),
            server_chains: Arc::default(),
        })
    }

    pub fn id(&self) -> &Identity {
        &self.id
    }

    /// The SNI by which peers ask for this proxy; other TLS is not ours to end.
    pub fn server_name(&self) -> &str {
        &self.server_name
    }

    /// When the leaf expires.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// Rises with each certificate and each change of trust anchors.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn anchors(&self) -> &TrustAnchors {
        &self.anchors
    }

    pub(super) fn server(&self, alpn: bool) -> Arc<ServerConfig> {
        if alpn {
            self.server_transport.clone()
        } else {
            self.server.clone()
        }
    }

    pub(super) fn client(&self, target: &Target) -> Result<Arc<ClientConfig>, Error> {
        self.clients.of(target, || {
            let peer = target.peer.id.clone();
            let verifier = ServerVerifier::new(peer, &self.anchors, self.server_chains.clone());
            client_config(&self.certificate, verifier, target.alpn)
        })
    }
}

fn server_config(
    certificate: &Arc<SingleCertAndKey>,
    anchors: &TrustAnchors,
    chains: &Arc<VerifiedChains>,
    alpn: bool,
) -> Result<Arc<ServerConfig>, CredentialsError> {
    let verifier = ClientVerifier::new(anchors, chains.clone()).map_err(CredentialsError::Setup)?;
    let resolver: Arc<dyn ResolvesServerCert> = certificate.clone();
    let mut config = ServerConfig::builder_with_provider(crypto::provider())
        .with_protocol_versions(crypto::VERSIONS)
        .map_err(CredentialsError::Setup)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(resolver);
    // The key that seals tickets lives and dies with these credentials, so neither a ticket from
    // before a change of anchors nor one of the other configuration is ever accepted. One ticket a
    // connection: clients use each once.
    config.ticketer = Ticketer::new().map_err(CredentialsError::Setup)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    // For the tunnels' own records.
    config.enable_secret_extraction = true;
    if alpn {
        config.alpn_protocols = vec![TRANSPORT_ALPN.to_vec()];
    }
    Ok(Arc::new(config))
}

fn client_config(
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
    config.resumption = Resumption::store(Arc::new(Tickets::default()));
    // For the tunnels' own records.
    config.enable_secret_extraction = true;
    if alpn {
        config.alpn_protocols = vec![TRANSPORT_ALPN.to_vec()];
    }
    Ok(Arc::new(config))
}
