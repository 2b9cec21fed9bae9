//! Tokens of a node without an API server: JWTs that are verified with its public key.

use std::time::{Duration, SystemTime};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::{Claims, TokenError, UnverifiedToken, decode};

/// Tolerated difference between the clocks of the signer and this process.
const CLOCK_SKEW: Duration = Duration::from_secs(20);

/// The public key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey(Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("contains no PEM public key of type ECDSA P-256")]
pub struct KeyError;

impl TokenKey {
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|_error| KeyError)?;
        let (_, key) = SubjectPublicKeyInfo::from_der(&der).map_err(|_error| KeyError)?;
        Self::new(&key)
    }

    pub(super) fn new(key: &SubjectPublicKeyInfo<'_>) -> Result<Self, KeyError> {
        let curve = key.algorithm.parameters.as_ref();
        let curve = curve.and_then(|parameters| parameters.as_oid().ok());
        if key.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve != Some(OID_EC_P256) {
            return Err(KeyError);
        }
        Ok(Self(key.subject_public_key.data.to_vec()))
    }

    pub(super) fn verify(
        &self,
        token: &UnverifiedToken<'_>,
        now: SystemTime,
    ) -> Result<(), TokenError> {
        if token.algorithm != "ES256" {
            return Err(TokenError::Algorithm);
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.0)
            .verify(token.signed.as_bytes(), &decode(token.signature)?)
            .map_err(|_error| TokenError::Signature)?;
        token.claims.check_audience()?;
        check_time(&token.claims, now)
    }
}

impl Claims {
    /// Rejects a token that is valid for longer than this.
    pub(super) fn check_lifetime(
        &self,
        longest: Duration,
        now: SystemTime,
    ) -> Result<(), TokenError> {
        let latest = seconds(now) + (longest + CLOCK_SKEW).as_secs_f64();
        match self.exp {
            Some(end) if end <= latest => Ok(()),
            _ => Err(TokenError::Expired),
        }
    }
}

fn seconds(time: SystemTime) -> f64 {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
    since_1970.unwrap_or_default().as_secs_f64()
}

fn check_time(claims: &Claims, now: SystemTime) -> Result<(), TokenError> {
    let now = seconds(now);
    if !claims.exp.is_some_and(|end| now < end) {
        return Err(TokenError::Expired);
    }
    if claims
        .nbf
        .is_some_and(|begin| now + CLOCK_SKEW.as_secs_f64() < begin)
    {
        return Err(TokenError::NotYetValid);
    }
    Ok(())
}
