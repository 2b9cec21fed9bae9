//! The trust anchors of every certificate chain of the mesh.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mesh_core::identity::Identity;
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::certificate;

/// The trust anchors of the mesh, and those of SPIFFE trust domains, which are valid for the
/// identities of their domain only. Cheap to clone. Sets with the same certificates in the same
/// order are equal.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TrustAnchors {
    /// Of DNS names, and of SPIFFE identities whose trust domain has no bundle.
    mesh: Roots,
    domains: Arc<DomainBundles>,
}

/// Trust anchors by SPIFFE trust domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DomainBundles(BTreeMap<String, Roots>);

#[derive(Clone)]
struct Roots {
    store: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
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
}

impl TrustAnchors {
    /// Parses one or more PEM certificates. One invalid certificate rejects the whole bundle: if it
    /// were skipped, the mistake would appear only when connections to some peers fail.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, TrustAnchorsError> {
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TrustAnchorsError::Pem(error.to_string()))?;
        Ok(Self {
            mesh: Roots::new(certificates)?,
            domains: Arc::default(),
        })
    }

    /// Returns the anchors of the mesh with these of trust domains.
    pub(crate) fn with_domains(&self, domains: DomainBundles) -> Self {
        Self {
            mesh: self.mesh.clone(),
            domains: Arc::new(domains),
        }
    }

    /// Returns the anchors that certificates of an identity must chain to. Those of a trust domain
    /// are valid for no other name, because its issuers may write any name into a certificate
    /// (SPIFFE Workload API, section 4.6).
    pub(super) fn roots_of(&self, id: &Identity) -> Arc<RootCertStore> {
        let domain = id
            .spiffe_trust_domain()
            .and_then(|domain| self.domains.0.get(domain));
        domain.unwrap_or(&self.mesh).store.clone()
    }

    pub(super) fn roots_of_mesh(&self) -> Arc<RootCertStore> {
        self.mesh.store.clone()
    }

    /// Returns the trust domains with anchors of their own.
    pub(super) fn domains(&self) -> impl Iterator<Item = (&str, Arc<RootCertStore>)> {
        let domains = self.domains.0.iter();
        domains.map(|(domain, roots)| (domain.as_str(), roots.store.clone()))
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

impl Roots {
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
        Ok(Self {
            store: Arc::new(store),
            certificates: certificates.into(),
        })
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Roots {}

impl fmt::Debug for TrustAnchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mesh, domains } = self;
        write!(f, "TrustAnchors({mesh:?}, {} domains)", domains.0.len())
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.certificates.len())
    }
}
