//! A new key and its certificate signing request. The key is generated here, used by this process
//! only and never stored.
//!
//! It is in AWS-LC's memory, which is wiped when it is freed. rustls needs it in DER as well; that
//! copy is wiped with its document.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::pkcs8::Document;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use mesh_core::identity::Identity;
use rcgen::{CertificateParams, DistinguishedName, DnType, PublicKeyData, SignatureAlgorithm};
use rustls::Error;
use rustls::crypto::aws_lc_rs::sign::any_ecdsa_type;
use rustls::sign::SigningKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::error::CredentialsError;

/// An ECDSA P-256 key and its certificate signing request (PKCS#10). Each certificate has a new
/// key, so that a leaked key is useful for one certificate's lifetime only.
pub(crate) struct CertificateRequest {
    der: Vec<u8>,
    key: Key,
}

struct Key(EcdsaKeyPair);

impl CertificateRequest {
    /// Generates a key and a request with the identity as subject CN and as the only DNS SAN, as
    /// the identity service expects.
    pub(crate) fn new(id: &Identity) -> Result<Self, CredentialsError> {
        let key =
            EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_unspecified| {
                CredentialsError::CertificateRequest(rcgen::Error::RingUnspecified)
            })?;
        let key = Key(key);
        let mut params = CertificateParams::new(vec![id.as_str().to_owned()])
            .map_err(CredentialsError::CertificateRequest)?;
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, id.as_str());
        params.distinguished_name = subject;
        let request = params
            .serialize_request(&key)
            .map_err(CredentialsError::CertificateRequest)?;
        Ok(Self {
            der: request.der().to_vec(),
            key,
        })
    }

    /// The request in DER.
    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }

    pub(super) fn into_key(self) -> Result<Arc<dyn SigningKey>, Error> {
        let document = self.to_pkcs8()?;
        let der = PrivatePkcs8KeyDer::from(document.as_ref());
        any_ecdsa_type(&PrivateKeyDer::from(der))
    }

    /// Encodes the private key.
    pub(super) fn to_pkcs8(&self) -> Result<Document, Error> {
        self.key
            .0
            .to_pkcs8v1()
            .map_err(|_unspecified| Error::General("cannot encode the private key".into()))
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature = self
            .0
            .sign(&SystemRandom::new(), message)
            .map_err(|_unspecified| rcgen::Error::RingUnspecified)?;
        Ok(signature.as_ref().to_vec())
    }
}

impl fmt::Debug for CertificateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateRequest(..)")
    }
}
