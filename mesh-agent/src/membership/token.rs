//! Tokens that the machine signs: JWTs (RFC 7519) with its certificates in the header. The identity
//! service verifies them (docs/reference/machine-tokens.md).

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use mesh_k8s::inject::TOKEN_AUDIENCE;
use serde_json::json;

use super::key::{KeyError, MachineKey};
use super::time::seconds;

/// How long a token is valid. The identity service accepts up to an hour; the rest is for a clock
/// of the machine that is ahead.
pub(crate) const LIFETIME: Duration = Duration::from_secs(30 * 60);

/// A signed token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) expires: SystemTime,
}

/// Signs a token. `chain` is the certificate of the key and the ones above it, in DER.
pub(super) fn sign(
    key: &MachineKey,
    chain: &[Vec<u8>],
    subject: &str,
    now: SystemTime,
) -> Result<Token, KeyError> {
    let expires = now + LIFETIME;
    let chain: Vec<String> = chain.iter().map(|der| STANDARD.encode(der)).collect();
    let header = json!({ "alg": "ES256", "typ": "JWT", "x5c": chain });
    let claims = json!({
        "sub": subject, "aud": [TOKEN_AUDIENCE], "iat": seconds(now), "exp": seconds(expires),
    });
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let signed = format!("{header}.{claims}");
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())?);
    Ok(Token {
        text: format!("{signed}.{signature}"),
        expires,
    })
}
