//! The trust anchors of every certificate chain of the mesh.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mesh_core::identity::Identity;
use mesh_core::trust_domain::{self, DomainRefusal};
use rustls::RootCertStore;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::{certificate, crypto};
use crate::transport::revocation::{Reason, Revocation};

/// The trust anchors of the mesh and of trust domains. The latter are valid for the identities of
/// their domain only. Cheap to clone. Sets with the same certificates in the same order are equal.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TrustAnchors {
    /// For all names that no other anchors are for.
    mesh: Roots,
    /// For SPIFFE identities, from the Workload API.
    domains: Arc<DomainBundles>,
    /// For names of linked clusters, from the identity service.
    foreign: Arc<ForeignDomains>,
}

/// Trust anchors by foreign trust domain, for SPIFFE identities and DNS names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForeignDomains(BTreeMap<String, ForeignDomain>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ForeignDomain {
    roots: Roots,
    /// Ends the connections of the domain when it is removed.
    revocation: Revocation,
}

/// The anchors that decide about a name.
enum Deciding<'a> {
    Mesh(&'a Roots),
    Domain(&'a Roots),
    Foreign(&'a ForeignDomain),
}

/// Domains that are not trusted any longer.
#[must_use]
pub(crate) struct RemovedDomains(BTreeMap<String, ForeignDomain>);

/// Trust anchors by SPIFFE trust domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DomainBundles(BTreeMap<String, Roots>);

#[derive(Clone)]
pub(super) struct Roots {
    store: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
    clients: Arc<dyn ClientCertVerifier>,
}

/// Why a bundle of trust anchors is invalid. The messages are predicates of the bundle's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TrustAnchorsError {
    #[error("holds no certificate in PEM form")]
    Empty,
    #[error("is malformed PEM: {0}")]
    Pem(String),
    #[error("is not a sequence of certificates in DER")]
    Der,
    #[error("holds a certificate (number {number}) that cannot be a trust anchor: {problem}")]
    Certificate { number: usize, problem: String },
    #[error("cannot verify clients: {0}")]
    Verifier(String),
}

/// Why the anchors of a foreign trust domain are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForeignError {
    #[error(transparent)]
    Domain(#[from] DomainRefusal),
    #[error("its bundle {0}")]
    Anchors(TrustAnchorsError),
}

impl TrustAnchors {
    /// Parses one or more PEM certificates. One invalid certificate rejects the whole bundle: if it
    /// were skipped, the mistake would appear only when connections to some peers fail.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, TrustAnchorsError> {
        Ok(Self {
            mesh: Roots::from_pem(pem)?,
            domains: Arc::default(),
            foreign: Arc::default(),
        })
    }

    /// Returns the anchors of the mesh with these of trust domains.
    pub(crate) fn with_domains(&self, domains: DomainBundles) -> Self {
        Self {
            mesh: self.mesh.clone(),
            domains: Arc::new(domains),
            foreign: self.foreign.clone(),
        }
    }

    /// Returns the anchors of the mesh with these of foreign trust domains.
    pub(crate) fn with_foreign(&self, foreign: ForeignDomains) -> Self {
        Self {
            mesh: self.mesh.clone(),
            domains: self.domains.clone(),
            foreign: Arc::new(foreign),
        }
    }

    pub(crate) fn foreign(&self) -> &ForeignDomains {
        &self.foreign
    }

    /// Returns the anchors that certificates of an identity must chain to. Those of a trust domain
    /// are valid for no other name, because its issuers may write any name into a certificate
    /// (SPIFFE Workload API, section 4.6).
    pub(super) fn roots_of(&self, id: &Identity) -> &Roots {
        match self.deciding(id) {
            Deciding::Mesh(roots) | Deciding::Domain(roots) => roots,
            Deciding::Foreign(domain) => &domain.roots,
        }
    }

    /// Returns what ends the connections of a peer, if its trust domain is a foreign one.
    pub(super) fn revocation_of(&self, id: &Identity) -> Option<&Revocation> {
        match self.deciding(id) {
            Deciding::Foreign(domain) => Some(&domain.revocation),
            Deciding::Mesh(_) | Deciding::Domain(_) => None,
        }
    }

    fn deciding(&self, id: &Identity) -> Deciding<'_> {
        let domain = id
            .spiffe_trust_domain()
            .and_then(|domain| self.domains.0.get(domain));
        if let Some(roots) = domain {
            return Deciding::Domain(roots);
        }
        match self.foreign.find(id) {
            Some(domain) => Deciding::Foreign(domain),
            None => Deciding::Mesh(&self.mesh),
        }
    }

    pub(super) fn roots_of_mesh(&self) -> &Roots {
        &self.mesh
    }

    /// Whether all names are verified by the anchors of the mesh.
    pub(super) fn are_only_of_mesh(&self) -> bool {
        self.domains.0.is_empty() && self.foreign.0.is_empty()
    }

    /// Returns the number of the mesh's anchors.
    pub(crate) fn len(&self) -> usize {
        self.mesh.certificates.len()
    }
}

impl DomainBundles {
    /// Adds the bundle of a trust domain: certificates in DER, one after the other. As in
    /// [`TrustAnchors::from_pem`], all must be valid.
    pub(crate) fn insert(&mut self, domain: &str, der: &[u8]) -> Result<(), TrustAnchorsError> {
        let certificates =
            certificate::split_der(der).map_err(|_malformed| TrustAnchorsError::Der)?;
        self.0.insert(domain.to_owned(), Roots::new(certificates)?);
        Ok(())
    }
}

impl ForeignDomains {
    /// Sets the anchors of a foreign trust domain, in PEM. The ones before stay if they are
    /// invalid. `own` is the trust domain of the mesh.
    pub(crate) fn insert(
        &mut self,
        domain: &str,
        pem: &str,
        own: Option<&str>,
    ) -> Result<(), ForeignError> {
        trust_domain::check_foreign(domain, own.ok_or(DomainRefusal::Unknown)?)?;
        for other in self.0.keys().filter(|other| *other != domain) {
            trust_domain::check_apart(domain, other)?;
        }
        let roots = Roots::from_pem(pem).map_err(ForeignError::Anchors)?;
        match self.0.get_mut(domain) {
            Some(known) => known.roots = roots,
            None => {
                let added = ForeignDomain {
                    roots,
                    revocation: Revocation::default(),
                };
                self.0.insert(domain.to_owned(), added);
            }
        }
        Ok(())
    }

    /// Removes the domains that `is_kept` does not keep, and returns them.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) -> RemovedDomains {
        let removed = self.0.extract_if(.., |domain, _| !is_kept(domain));
        RemovedDomains(removed.collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn find(&self, id: &Identity) -> Option<&ForeignDomain> {
        let mut domains = self.0.iter();
        let (_, domain) = domains.find(|(domain, _)| trust_domain::is_member(id, domain))?;
        Some(domain)
    }
}

impl RemovedDomains {
    /// Ends the connections of the domains, and returns how many there were.
    pub(crate) fn end_connections(&self) -> u64 {
        let mut ended = 0;
        for (domain, removed) in &self.0 {
            tracing::info!(
                domain,
                "Foreign trust domain is no longer trusted; its connections end"
            );
            ended += removed.revocation.revoke(Reason::TrustDomain);
        }
        ended
    }
}

impl Roots {
    pub(super) fn store(&self) -> Arc<RootCertStore> {
        self.store.clone()
    }

    /// The verifier of the chains of clients.
    pub(super) fn clients(&self) -> &dyn ClientCertVerifier {
        &*self.clients
    }

    fn from_pem(pem: &str) -> Result<Self, TrustAnchorsError> {
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TrustAnchorsError::Pem(error.to_string()))?;
        Self::new(certificates)
    }

    fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TrustAnchorsError> {
        if certificates.is_empty() {
            return Err(TrustAnchorsError::Empty);
        }
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            store
                .add(certificate.clone())
                .map_err(|error| TrustAnchorsError::Certificate {
                    number: index + 1,
                    problem: error.to_string(),
                })?;
        }
        let store = Arc::new(store);
        Ok(Self {
            clients: chain_verifier(store.clone())
                .map_err(|error| TrustAnchorsError::Verifier(error.to_string()))?,
            store,
            certificates: certificates.into(),
        })
    }
}

fn chain_verifier(
    roots: Arc<RootCertStore>,
) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    WebPkiClientVerifier::builder_with_provider(roots, crypto::provider())
        // Clients of the mesh have one certificate, so a list of acceptable issuers would only
        // lengthen each handshake.
        .clear_root_hint_subjects()
        .allow_unauthenticated()
        .build()
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Roots {}

impl fmt::Debug for TrustAnchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mesh,
            domains,
            foreign,
        } = self;
        let domains = domains.0.len() + foreign.0.len();
        write!(f, "TrustAnchors({mesh:?}, {domains} domains)")
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.certificates.len())
    }
}
