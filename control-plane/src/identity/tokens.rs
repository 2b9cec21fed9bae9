//! Tokens: which ServiceAccount sent a request.
//!
//! [`Tokens`] is the seam: today tokens are JWTs that a node without an API server signed; with one, a TokenReview answers the same question.

use std::time::{Duration, SystemTime};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::RwLock;
use rustls_pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
use serde::Deserialize;
use x509_parser::{
    oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY},
    prelude::FromDer,
    x509::SubjectPublicKeyInfo,
};

/// Whom the tokens are for. A token for anybody else, the API server included, proves nothing here.
const AUDIENCE: &str = "identity.l5d.io";

/// How far the clocks of the signer and of this process may be apart.
const CLOCK_SKEW: Duration = Duration::from_secs(20);

/// Who reviews tokens.
#[derive(Debug)]
pub enum Tokens {
    /// JWTs, signed with ECDSA P-256 by the holder of a key. The lock is written when the key's file changes.
    Signed(RwLock<TokenKey>),
}

/// The public key that tokens are verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey(Vec<u8>);

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it holds no PEM public key of type ECDSA P-256")]
pub struct KeyError;

/// Why a token was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("it is no JSON Web Token")]
    Unreadable,
    #[error("it is not signed with ES256")]
    Algorithm,
    #[error("its signature is not that of the expected signer")]
    Signature,
    #[error("it is for somebody else; its audience must include {AUDIENCE}")]
    Audience,
    #[error("it expired or has no end")]
    Expired,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("its subject {0:?} is no ServiceAccount (system:serviceaccount:<namespace>:<name>)")]
    Subject(String),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    aud: Audience,
    exp: Option<f64>,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl TokenKey {
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|_error| KeyError)?;
        let (_, key) = SubjectPublicKeyInfo::from_der(&der).map_err(|_error| KeyError)?;
        let curve = key.algorithm.parameters.as_ref();
        let curve = curve.and_then(|parameters| parameters.as_oid().ok());
        if key.algorithm.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve != Some(OID_EC_P256) {
            return Err(KeyError);
        }
        Ok(Self(key.subject_public_key.data.to_vec()))
    }
}

impl Tokens {
    pub fn signed_by(key: TokenKey) -> Self {
        Self::Signed(RwLock::new(key))
    }

    pub(super) fn set_key(&self, key: TokenKey) {
        let Self::Signed(current) = self;
        *current.write() = key;
    }

    /// The account that the token was issued to.
    pub(super) fn review(&self, token: &[u8], now: SystemTime) -> Result<Account, TokenError> {
        let Self::Signed(key) = self;
        verify(&key.read(), token, now)
    }
}

fn verify(key: &TokenKey, token: &[u8], now: SystemTime) -> Result<Account, TokenError> {
    let text = std::str::from_utf8(token).map_err(|_error| TokenError::Unreadable)?;
    let (signed, signature) = text.trim().rsplit_once('.').ok_or(TokenError::Unreadable)?;
    let (header, claims) = signed.split_once('.').ok_or(TokenError::Unreadable)?;
    let header: Header = decode_json(header)?;
    if header.alg != "ES256" {
        return Err(TokenError::Algorithm);
    }
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &key.0)
        .verify(signed.as_bytes(), &decode(signature)?)
        .map_err(|_error| TokenError::Signature)?;
    let claims: Claims = decode_json(claims)?;
    check_audience(&claims.aud)?;
    check_time(&claims, now)?;
    account(&claims.sub).ok_or(TokenError::Subject(claims.sub))
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_error| TokenError::Unreadable)
}

fn decode_json<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, TokenError> {
    serde_json::from_slice(&decode(part)?).map_err(|_error| TokenError::Unreadable)
}

fn check_audience(audience: &Audience) -> Result<(), TokenError> {
    let ours = match audience {
        Audience::One(audience) => audience == AUDIENCE,
        Audience::Several(audiences) => audiences.iter().any(|audience| audience == AUDIENCE),
    };
    if ours {
        Ok(())
    } else {
        Err(TokenError::Audience)
    }
}

fn check_time(claims: &Claims, now: SystemTime) -> Result<(), TokenError> {
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
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

/// `system:serviceaccount:<namespace>:<name>`, both DNS labels: a dot in a name would shift the parts of the identity.
fn account(subject: &str) -> Option<Account> {
    let mut parts = subject.split(':');
    let (Some("system"), Some("serviceaccount"), Some(namespace), Some(name), None) = (
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
    ) else {
        return None;
    };
    (is_dns_label(namespace) && is_dns_label(name)).then(|| Account {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

pub fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}
