//! A fresh key and the request to certify it. The key is made here, used here and never written anywhere.

use std::fmt;

use mesh_core::identity::Identity;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::error::CredentialsError;

/// An ECDSA P-256 key and its certificate signing request. One per certificate: a key that leaked is worth one lifetime.
pub struct SigningRequest {
    der: Vec<u8>,
    key: PrivateKeyDer<'static>,
}

impl SigningRequest {
    /// Subject CN and one DNS SAN, both the identity, as the identity service expects.
    pub fn new(id: &Identity) -> Result<Self, CredentialsError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .map_err(CredentialsError::SigningRequest)?;
        let mut params = CertificateParams::new(vec![id.as_str().to_owned()])
            .map_err(CredentialsError::SigningRequest)?;
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, id.as_str());
        params.distinguished_name = subject;
        let request = params
            .serialize_request(&key)
            .map_err(CredentialsError::SigningRequest)?;
        Ok(Self {
            der: request.der().to_vec(),
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }

    /// What is sent to the identity service.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    pub(super) fn into_key(self) -> PrivateKeyDer<'static> {
        self.key
    }
}

impl fmt::Debug for SigningRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningRequest(..)")
    }
}
