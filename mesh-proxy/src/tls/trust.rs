//! The trust anchors of every certificate chain of the mesh.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// A set of trust anchors. Cheap to clone. Sets with the same certificates in the same order are
/// equal.
#[derive(Clone)]
pub(crate) struct TrustAnchors {
    roots: Arc<RootCertStore>,
    certificates: Arc<[CertificateDer<'static>]>,
}

/// Why a bundle of trust anchors is invalid. The messages are predicates of the bundle's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TrustAnchorsError {
    #[error("holds no certificate in PEM form")]
    Empty,
    #[error("is malformed PEM: {0}")]
    Pem(String),
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

    pub(crate) fn len(&self) -> usize {
        self.certificates.len()
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
