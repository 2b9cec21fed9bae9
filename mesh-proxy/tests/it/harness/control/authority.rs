//! The certificate authority of a test.

use std::time::Duration;

use mesh_api::identity::IssuedCertificate;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
};
use rustls_pki_types::CertificateSigningRequestDer;
use time::OffsetDateTime;

/// A root that issues leaves directly.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        Self {
            pem: root.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(super) fn pem(&self) -> String {
        self.pem.clone()
    }

    /// A leaf for an hour.
    pub(super) fn sign(&self, der: &[u8]) -> IssuedCertificate {
        let der = CertificateSigningRequestDer::from(der);
        let mut csr = CertificateSigningRequestParams::from_der(&der).unwrap();
        let until = OffsetDateTime::now_utc() + Duration::from_secs(3600);
        csr.params.not_before = OffsetDateTime::now_utc() - Duration::from_secs(60);
        csr.params.not_after = until;
        IssuedCertificate {
            leaf: csr.signed_by(&self.issuer).unwrap().der().to_vec(),
            intermediates: Vec::new(),
            valid_until: until.into(),
        }
    }
}
