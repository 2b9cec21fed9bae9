//! Tokens: which ServiceAccount sent a request.
//!
//! [`Tokens`] is the seam: on a cluster the API server reviews a token ([`reviewed`]), on a node
//! without one the key of the node verifies it ([`signed`]). Both are told the same JWTs, so what a
//! token says of itself is read here, once, and believed by nobody.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::RwLock;
use serde::Deserialize;

mod reviewed;
mod signed;

pub use self::{
    reviewed::{AccessError, Reviews},
    signed::{KeyError, TokenKey},
};

/// Whom the tokens are for. A token for anybody else, the API server included, proves nothing here.
const AUDIENCE: &str = "identity.l5d.io";

/// Who reviews tokens.
#[derive(Debug)]
pub enum Tokens {
    /// JWTs, signed with ECDSA P-256 by the holder of a key. The lock is written when the key's
    /// file changes.
    Signed(RwLock<TokenKey>),
    /// The API server that issued them.
    Reviewed(Box<Reviews>),
}

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

/// An account that a token proved to be the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    pub account: Account,
    /// The object's uid, where an API server told it.
    pub uid: Option<String>,
}

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
    #[error("the API server does not accept it: {0}")]
    Rejected(String),
    #[error("the API server says that nobody has it")]
    NotAuthenticated,
    #[error("the API server did not review it: {0}")]
    NotReviewed(String),
    #[error("too many tokens wait for the API server's review")]
    Busy,
}

/// A token taken apart. Nothing of it is proved.
pub(super) struct Token<'a> {
    text: &'a str,
    algorithm: String,
    signed: &'a str,
    signature: &'a str,
    claims: Claims,
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

impl Tokens {
    pub fn signed_by(key: TokenKey) -> Self {
        Self::Signed(RwLock::new(key))
    }

    /// Nothing to set where the API server reviews.
    pub(super) fn set_key(&self, key: TokenKey) {
        if let Self::Signed(current) = self {
            *current.write() = key;
        }
    }

    /// The account that the token was issued to.
    pub(super) async fn review(
        &self,
        token: &Token<'_>,
        now: SystemTime,
    ) -> Result<Proved, TokenError> {
        match self {
            Self::Signed(key) => {
                let key = key.read().clone();
                key.verify(token, now)?;
                Ok(Proved {
                    account: token.claimed()?,
                    uid: None,
                })
            }
            Self::Reviewed(reviews) => reviews.review(token).await,
        }
    }
}

impl<'a> Token<'a> {
    pub(super) fn read(token: &'a [u8]) -> Result<Self, TokenError> {
        let text = std::str::from_utf8(token).map_err(|_error| TokenError::Unreadable)?;
        let text = text.trim();
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Unreadable)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Unreadable)?;
        let header: Header = decode_json(header)?;
        Ok(Self {
            text,
            algorithm: header.alg,
            signed,
            signature,
            claims: decode_json(claims)?,
        })
    }

    /// Whose token it says it is.
    pub(super) fn claimed(&self) -> Result<Account, TokenError> {
        let subject = &self.claims.sub;
        account(subject).ok_or_else(|| TokenError::Subject(subject.clone()))
    }
}

impl Claims {
    fn check_audience(&self) -> Result<(), TokenError> {
        let ours = match &self.aud {
            Audience::One(audience) => audience == AUDIENCE,
            Audience::Several(audiences) => audiences.iter().any(|audience| audience == AUDIENCE),
        };
        if ours {
            Ok(())
        } else {
            Err(TokenError::Audience)
        }
    }
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD
        .decode(part)
        .map_err(|_error| TokenError::Unreadable)
}

fn decode_json<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, TokenError> {
    serde_json::from_slice(&decode(part)?).map_err(|_error| TokenError::Unreadable)
}

/// `system:serviceaccount:<namespace>:<name>`, both DNS labels: a dot in a name would shift the
/// parts of the identity.
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
