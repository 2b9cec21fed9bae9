//! Credentials of a simulated world, whose certificates and handshakes have the same lengths in
//! every run with the same seed.
//!
//! The product's keys are of ECDSA: its signatures contain a random number and differ in length, so
//! that the sizes of a handshake's messages would differ from run to run. Ed25519 has neither
//! (RFC 8032, section 5.1.6). The keys come from the seed of the world, and the other parts of the
//! certificates are constants. Everything but the keys is the product's: verification, sessions and
//! the protocol.

use std::sync::Arc;

use mesh_core::identity::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
    SerialNumber, date_time_ymd,
};
use rustls::Error;
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::{Credentials, CredentialsError, TrustAnchors, TrustAnchorsError};
use crate::random;

/// The certificate authority of a world.
pub(crate) struct SimulatedCa {
    issuer: Issuer<'static, KeyPair>,
    anchors: TrustAnchors,
    anchor_pem: String,
}

/// Why credentials could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulatedCaError {
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot use the key of a certificate")]
    Key(#[from] Error),
    #[error(transparent)]
    Anchor(#[from] TrustAnchorsError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// What precedes the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410, section 7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

impl SimulatedCa {
    /// Creates an authority with a key from the thread's seed.
    pub(crate) fn new() -> Result<Self, SimulatedCaError> {
        let (key, _) = new_key()?;
        let mut params = params(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let anchor_pem = params.self_signed(&key)?.pem();
        Ok(Self {
            anchors: TrustAnchors::from_pem(&anchor_pem)?,
            anchor_pem,
            issuer: Issuer::new(params, key),
        })
    }

    /// The trust anchor in PEM.
    pub(crate) fn anchor_pem(&self) -> &str {
        &self.anchor_pem
    }

    /// Issues credentials of an identity, which is its server name too.
    pub(crate) fn credentials(&self, id: &Identity) -> Result<Arc<Credentials>, SimulatedCaError> {
        let (key, der) = new_key()?;
        let name = id.as_str().to_owned();
        let leaf = params(vec![name])?.signed_by(&key, &self.issuer)?;
        let signing = any_eddsa_type(&PrivatePkcs8KeyDer::from(der))?;
        let certified = CertifiedKey::new(vec![leaf.der().clone()], signing);
        let credentials = Credentials::from_certified_key(
            id,
            &id.as_str().into(),
            Arc::new(certified),
            &self.anchors,
            1,
        )?;
        Ok(Arc::new(credentials))
    }
}

fn params(names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    // Valid whenever a simulation runs: certificates are verified by the machine's clock.
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2049, 1, 1);
    params.serial_number = Some(SerialNumber::from(vec![1; 16]));
    Ok(params)
}

fn new_key() -> Result<(KeyPair, Vec<u8>), rcgen::Error> {
    let seed: [u8; 32] = random::random();
    let der = [&PKCS8_PREFIX[..], &seed].concat();
    let pkcs8 = PrivatePkcs8KeyDer::from(der.clone());
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519)?;
    Ok((key, der))
}
