//! The PKI of a node: a trust anchor, the issuer of workload certificates, and the key that signs
//! service account tokens. It is created whenever a node starts. The private key of the trust
//! anchor is used once, to sign the issuer, and is not stored.

use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use time::{Duration, OffsetDateTime};

use crate::file::{self, FileError};

/// The user ID of the controllers, which must be able to read the issuer's key.
pub const CONTROLLER_UID: u32 = 2103;
/// The common names that Linkerd uses for the two certificates.
const ANCHOR_NAME: &str = "root.linkerd.cluster.local";
const ISSUER_NAME: &str = "identity.linkerd.cluster.local";
/// Validity of both certificates. It is long, because they are not renewed while a node is up.
const LIFETIME: Duration = Duration::days(365);
/// Certificates are valid from this time before their creation, for peers whose clock is behind.
const CLOCK_SKEW: Duration = Duration::minutes(5);

/// The parts of the PKI that the node uses.
pub struct PkiMaterial {
    /// The trust anchors of all proxies, in PEM.
    pub trust_anchors: String,
    pub token_signer: TokenSigner,
}

/// Signs tokens with ECDSA P-256.
pub struct TokenSigner {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("create the {what}")]
    Create {
        what: &'static str,
        source: rcgen::Error,
    },
    #[error("load the token signing key")]
    Key(#[source] aws_lc_rs::error::KeyRejected),
    #[error(transparent)]
    Write(#[from] FileError),
}

/// Returns the directory of the issuer (`crt.pem` and `key.pem`), which is mounted into the
/// identity controller.
pub fn issuer_dir(pki: &Path) -> PathBuf {
    pki.join("issuer")
}

/// Returns the directory of the trust anchors.
pub fn anchors_dir(pki: &Path) -> PathBuf {
    pki.join("trust-roots")
}

/// Returns the directory of the public key that verifies tokens.
pub fn token_dir(pki: &Path) -> PathBuf {
    pki.join("token")
}

/// Creates the PKI and writes the files that the controllers read.
pub fn create(pki: &Path) -> Result<PkiMaterial, PkiError> {
    let anchor_key = key_pair("trust anchor")?;
    let anchor_params = ca_params(ANCHOR_NAME, BasicConstraints::Unconstrained);
    let anchor = anchor_params
        .self_signed(&anchor_key)
        .map_err(create_error("trust anchor"))?;
    let issuer_key = key_pair("issuer")?;
    let issuer = ca_params(ISSUER_NAME, BasicConstraints::Constrained(0))
        .signed_by(&issuer_key, &Issuer::new(anchor_params, anchor_key))
        .map_err(create_error("issuer"))?;
    let token_key = key_pair("token signing key")?;
    let trust_anchors = anchor.pem();
    write(
        &anchors_dir(pki).join("ca-bundle.crt"),
        &trust_anchors,
        0o644,
    )?;
    write(&issuer_dir(pki).join("crt.pem"), &issuer.pem(), 0o644)?;
    let key_path = issuer_dir(pki).join("key.pem");
    write(&key_path, &issuer_key.serialize_pem(), 0o600)?;
    std::os::unix::fs::chown(&key_path, Some(CONTROLLER_UID), None)
        .map_err(file::failed("write", &key_path))?;
    write(
        &token_dir(pki).join("verify.pem"),
        &token_key.public_key_pem(),
        0o644,
    )?;
    Ok(PkiMaterial {
        trust_anchors,
        token_signer: TokenSigner::new(&token_key)?,
    })
}

impl TokenSigner {
    fn new(key: &KeyPair) -> Result<Self, PkiError> {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der())
            .map_err(PkiError::Key)?;
        Ok(Self {
            key,
            random: SystemRandom::new(),
        })
    }

    /// Returns the signature in the format of ES256 (RFC 7518, section 3.4): R and S concatenated.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, aws_lc_rs::error::Unspecified> {
        let signature = self.key.sign(&self.random, message)?;
        Ok(signature.as_ref().to_vec())
    }
}

fn key_pair(what: &'static str) -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(create_error(what))
}

fn ca_params(name: &str, constraints: BasicConstraints) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + LIFETIME;
    params
}

fn create_error(what: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Create { what, source }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    file::write(path, text.as_bytes(), mode).map_err(file::failed("write", path))
}

#[cfg(test)]
pub(crate) mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, KeyPair as _, UnparsedPublicKey};

    use super::*;

    pub(crate) fn signer() -> TokenSigner {
        TokenSigner::new(&key_pair("test").unwrap()).unwrap()
    }

    #[test]
    fn anchor_signs_the_issuer() {
        let directory = tempfile::tempdir().unwrap();
        let material = create(directory.path()).unwrap();
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        let bundle = read(anchors_dir(directory.path()).join("ca-bundle.crt"));
        assert_eq!(bundle, material.trust_anchors);
        let issuer = read(issuer_dir(directory.path()).join("crt.pem"));
        let parse = |pem: &str| x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1;
        let (anchor, issuer) = (parse(&bundle), parse(&issuer));
        let anchor = anchor.parse_x509().unwrap();
        let issuer = issuer.parse_x509().unwrap();
        issuer.verify_signature(Some(anchor.public_key())).unwrap();
        assert!(issuer.is_ca() && anchor.is_ca());
        assert_eq!(issuer.subject().to_string(), format!("CN={ISSUER_NAME}"));
    }

    #[test]
    fn tokens_verify_with_the_public_key() {
        let signer = signer();
        let signature = signer.sign(b"header.claims").unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, signer.key.public_key())
            .verify(b"header.claims", &signature)
            .unwrap();
    }
}
