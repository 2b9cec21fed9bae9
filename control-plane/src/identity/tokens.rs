//! Authentication of ServiceAccounts by tokens.
//!
//! [`TokenVerifier`] has two implementations: on a cluster the API server reviews a token
//! ([`reviewed`]), on a node without one it is verified with the key of the node ([`signed`]). Both
//! get the same JWTs, so the unverified claims are parsed here once. Machines outside Kubernetes
//! sign tokens of the same form with keys of their own ([`machine`]).

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mesh_core::identity::{ACCOUNT_SUBJECT, is_dns_label};
use mesh_k8s::inject::TOKEN_AUDIENCE;
use parking_lot::RwLock;
use serde::Deserialize;

pub(super) mod machine;
mod reviewed;
mod signed;

pub use self::{
    reviewed::{AccessError, TokenReviewer},
    signed::{KeyError, TokenKey},
};

/// The required audience. Tokens for other audiences, including the API server, are rejected.
const AUDIENCE: &str = TOKEN_AUDIENCE;

/// How tokens are verified.
#[derive(Debug)]
pub enum TokenVerifier {
    /// JWTs that are signed with ECDSA P-256. The lock is written when the file of the key changes.
    Signed(RwLock<TokenKey>),
    /// Tokens of an API server, which reviews them.
    Reviewed(Box<TokenReviewer>),
}

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

/// Whose identity a token is for.
pub(super) enum Subject {
    Account(Account),
    Machine(String),
}

/// An account that a token authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatedAccount {
    pub account: Account,
    /// The UID of the ServiceAccount, if an API server reported it.
    pub uid: Option<String>,
}

/// Why a token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("not a JSON Web Token")]
    Unreadable,
    #[error("not signed with ES256")]
    Algorithm,
    #[error("the signature is not that of the expected signer")]
    Signature,
    #[error("token audience does not include {AUDIENCE}")]
    Audience,
    #[error("expired, or without expiry")]
    Expired,
    #[error("not valid yet")]
    NotYetValid,
    #[error("the subject {0:?} is not a ServiceAccount (system:serviceaccount:<namespace>:<name>)")]
    Subject(String),
    #[error("rejected by the API server: {0}")]
    Rejected(String),
    #[error("not authenticated by the API server")]
    NotAuthenticated,
    #[error("the API server did not review the token: {0}")]
    NotReviewed(String),
    #[error("too many tokens are waiting for a review of the API server")]
    Busy,
    #[error("machine {0:?} is not admitted: there is no valid ConfigMap linkerd-machine-{0}")]
    UnknownMachine(String),
    #[error("the certificate of the machine that signed it is invalid: {0}")]
    MachineCertificate(&'static str),
    #[error("the key is not the one of machine {0}")]
    MachineKey(String),
    #[error("machine {machine} may not have the identity of ServiceAccount {account}")]
    MachineAccount { machine: String, account: String },
    #[error("machine {signer} signed a token for machine {claimed}")]
    OtherMachine { signer: String, claimed: String },
    #[error("the token to join with is unknown or was replaced")]
    JoinToken,
}

/// A parsed token whose claims are not verified.
pub(super) struct UnverifiedToken<'a> {
    text: &'a str,
    algorithm: String,
    certificates: Vec<String>,
    signed: &'a str,
    signature: &'a str,
    claims: Claims,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// The certificates of the signer, in base64 (RFC 7515, section 4.1.6).
    #[serde(default)]
    x5c: Vec<String>,
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

impl TokenVerifier {
    pub fn signed_by(key: TokenKey) -> Self {
        Self::Signed(RwLock::new(key))
    }

    /// Has no effect if the API server reviews tokens.
    pub(super) fn set_key(&self, key: TokenKey) {
        if let Self::Signed(current) = self {
            *current.write() = key;
        }
    }

    /// Verifies the token and returns its account.
    pub(super) async fn review(
        &self,
        token: &UnverifiedToken<'_>,
        now: SystemTime,
    ) -> Result<AuthenticatedAccount, TokenError> {
        match self {
            Self::Signed(key) => {
                let key = key.read().clone();
                key.verify(token, now)?;
                Ok(AuthenticatedAccount {
                    account: token.claimed_account()?,
                    uid: None,
                })
            }
            Self::Reviewed(reviews) => reviews.review(token).await,
        }
    }
}

impl<'a> UnverifiedToken<'a> {
    pub(super) fn read(token: &'a [u8]) -> Result<Self, TokenError> {
        let text = std::str::from_utf8(token).map_err(|_error| TokenError::Unreadable)?;
        let text = text.trim();
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Unreadable)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Unreadable)?;
        let header: Header = decode_json(header)?;
        Ok(Self {
            text,
            algorithm: header.alg,
            certificates: header.x5c,
            signed,
            signature,
            claims: decode_json(claims)?,
        })
    }

    /// Returns the account that the token claims.
    pub(super) fn claimed_account(&self) -> Result<Account, TokenError> {
        let subject = &self.claims.sub;
        account(subject).ok_or_else(|| TokenError::Subject(subject.clone()))
    }
}

impl Claims {
    fn check_audience(&self) -> Result<(), TokenError> {
        let includes = match &self.aud {
            Audience::One(audience) => audience == AUDIENCE,
            Audience::Several(audiences) => audiences.iter().any(|audience| audience == AUDIENCE),
        };
        if includes {
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

/// Parses `system:serviceaccount:<namespace>:<name>`. Both must be DNS labels: a dot in a name
/// would shift the parts of the identity.
fn account(subject: &str) -> Option<Account> {
    let account = subject.strip_prefix(ACCOUNT_SUBJECT)?;
    let (namespace, name) = account.split_once(':')?;
    (is_dns_label(namespace) && is_dns_label(name)).then(|| Account {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}
