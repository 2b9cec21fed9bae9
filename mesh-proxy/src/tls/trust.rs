//! The roots that every certificate of the mesh chains to.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// A set of trust anchors. Cheap to clone; equal when the certificates are.
#[derive(Clone)]
pub struct TrustAnchors {
    roots: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
}

/// Why a bundle of trust anchors is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustAnchorsError {
    #[error("holds no certificate in PEM form")]
    Empty,
    #[error("is malformed PEM: {0}")]
    Pem(String),
    #[error("holds a certificate (number {number}) that cannot be a trust anchor: {problem}")]
    Certificate { number: usize, problem: String },
}

impl TrustAnchors {
    /// Reads one or more PEM certificates. One bad certificate fails the whole bundle: a root that
    /// is silently missing is found out when half of the mesh does not answer.
    pub fn from_pem(pem: &str) -> Result<Self, TrustAnchorsError> {
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TrustAnchorsError::Pem(error.to_string()))?;
        if certificates.is_empty() {
            return Err(TrustAnchorsError::Empty);
        }
        let mut roots = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            roots
                .add(certificate.clone())
                .map_err(|error| TrustAnchorsError::Certificate {
                    number: index + 1,
                    problem: error.to_string(),
                })?;
        }
        Ok(Self {
            roots: Arc::new(roots),
            certificates: certificates.into(),
        })
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        self.roots.clone()
    }

    pub fn len(&self) -> usize {
        self.certificates.len()
    }

    /// Never: an empty bundle is refused.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

impl PartialEq for TrustAnchors {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for TrustAnchors {}

impl fmt::Debug for TrustAnchors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustAnchors({})", self.certificates.len())
    }
}
