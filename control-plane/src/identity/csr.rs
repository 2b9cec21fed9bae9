//! Validation of certificate signing requests.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::SubjectPublicKeyInfo;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256,
};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo as ParsedKey;

/// A request for one DNS name and a P-256 key has about 300 bytes.
const MAX_LENGTH: usize = 16 * 1024;

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsrError {
    #[error("{0} bytes are more than the maximum of {MAX_LENGTH}")]
    TooLong(usize),
    #[error("not a DER-encoded PKCS#10 certificate request")]
    Unreadable,
    #[error("the key is not ECDSA P-256")]
    KeyType,
    #[error("not signed with ECDSA and SHA-256")]
    SignatureType,
    #[error("the signature does not match the key")]
    Signature,
    #[error("expected exactly one subject alternative name, the DNS name of the identity")]
    Names,
    #[error("the subject is not empty or the identity")]
    Subject,
    #[error("requests a certificate authority")]
    Authority,
}

impl CsrError {
    /// Returns whether the request cannot be parsed, in contrast to a valid request for too much.
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::TooLong(_) | Self::Unreadable)
    }
}

/// Validates a request for a certificate of `identity` and returns its public key. The signature
/// proves that the client has the private key.
pub(super) fn check(der: &[u8], identity: &str) -> Result<SubjectPublicKeyInfo, CsrError> {
    if der.len() > MAX_LENGTH {
        return Err(CsrError::TooLong(der.len()));
    }
    let (rest, csr) =
        X509CertificationRequest::from_der(der).map_err(|_error| CsrError::Unreadable)?;
    if !rest.is_empty() {
        return Err(CsrError::Unreadable);
    }
    let info = &csr.certification_request_info;
    check_key(&info.subject_pki)?;
    check_signature(&csr)?;
    check_extensions(&csr, identity)?;
    check_subject(&csr, identity)?;
    SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_error| CsrError::KeyType)
}

fn check_key(key: &ParsedKey<'_>) -> Result<(), CsrError> {
    /// The length of an uncompressed point: a tag and two coordinates of 32 bytes.
    const POINT_LENGTH: usize = 65;
    let curve = key
        .algorithm
        .parameters
        .as_ref()
        .and_then(|parameters| parameters.as_oid().ok());
    let point = &key.subject_public_key.data;
    let p256 = key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve == Some(OID_EC_P256)
        && point.len() == POINT_LENGTH
        && point[0] == 4;
    if p256 { Ok(()) } else { Err(CsrError::KeyType) }
}

/// Checks the proof of possession of the key.
fn check_signature(csr: &X509CertificationRequest<'_>) -> Result<(), CsrError> {
    if csr.signature_algorithm.algorithm != OID_SIG_ECDSA_WITH_SHA256 {
        return Err(CsrError::SignatureType);
    }
    let info = &csr.certification_request_info;
    UnparsedPublicKey::new(
        &ECDSA_P256_SHA256_ASN1,
        &info.subject_pki.subject_public_key.data,
    )
    .verify(info.raw, &csr.signature_value.data)
    .map_err(|_error| CsrError::Signature)
}

fn check_extensions(csr: &X509CertificationRequest<'_>, identity: &str) -> Result<(), CsrError> {
    let mut names = 0;
    for extension in csr.requested_extensions().into_iter().flatten() {
        match extension {
            ParsedExtension::SubjectAlternativeName(san) => {
                for name in &san.general_names {
                    match name {
                        GeneralName::DNSName(name) if *name == identity => names += 1,
                        _ => return Err(CsrError::Names),
                    }
                }
            }
            ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                return Err(CsrError::Authority);
            }
            ParsedExtension::KeyUsage(usage) if usage.key_cert_sign() || usage.crl_sign() => {
                return Err(CsrError::Authority);
            }
            // Other requested extensions are ignored: they are not copied to the certificate.
            _ => {}
        }
    }
    if names == 1 {
        Ok(())
    } else {
        Err(CsrError::Names)
    }
}

/// The subject must be empty or have the identity as its only common name.
fn check_subject(csr: &X509CertificationRequest<'_>, identity: &str) -> Result<(), CsrError> {
    let subject = &csr.certification_request_info.subject;
    let allowed = subject
        .iter_common_name()
        .all(|name| name.as_str() == Ok(identity))
        && subject.iter_common_name().count() <= 1
        && subject.iter_attributes().count() == subject.iter_common_name().count();
    if allowed {
        Ok(())
    } else {
        Err(CsrError::Subject)
    }
}
