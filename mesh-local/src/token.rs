//! Service account tokens. Proxies authenticate to the identity controller with them. The claims
//! are the same as in Kubernetes.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::json;

use mesh_core::identity::account_subject;

use crate::digest;
use crate::manifest::ObjectKey;
use crate::pki::TokenSigner;

/// The issuer claim, which identifies the API server on a cluster.
const ISSUER: &str = "https://mesh-local.cluster.local";
/// The minimum lifetime in Kubernetes.
pub(crate) const MIN_LIFETIME: Duration = Duration::from_secs(600);
const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);

/// The subject, audience and lifetime of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    pub account: ObjectKey,
    /// The pod that uses the token.
    pub pod: Option<BoundPod>,
    pub audience: String,
    pub lifetime: Duration,
}

/// A pod in the namespace of a token's account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BoundPod {
    pub name: String,
    pub uid: String,
}

#[derive(Debug, thiserror::Error)]
#[error("sign a token of ServiceAccount {account}")]
pub struct SignError {
    account: ObjectKey,
    source: aws_lc_rs::error::Unspecified,
}

/// Returns the lifetime for a projected volume, within the limits of Kubernetes.
pub fn lifetime(expiration_seconds: Option<i64>) -> Duration {
    match expiration_seconds.map(u64::try_from) {
        Some(Ok(seconds)) => Duration::from_secs(seconds).max(MIN_LIFETIME),
        _ => DEFAULT_LIFETIME,
    }
}

/// Returns the time until a token is renewed: 80 % of its lifetime, as in the kubelet.
pub fn renew_after(lifetime: Duration) -> Duration {
    lifetime * 4 / 5
}

/// Signs a token that is valid from the Unix time `now`, in seconds.
pub fn sign(signer: &TokenSigner, request: &TokenRequest, now: i64) -> Result<String, SignError> {
    let ObjectKey { namespace, name } = &request.account;
    let expires = now.saturating_add_unsigned(request.lifetime.as_secs());
    let mut claims = json!({
        "iss": ISSUER,
        "sub": account_subject(namespace, name),
        "aud": [request.audience],
        "iat": now,
        "nbf": now,
        "exp": expires,
        "kubernetes.io": {
            "namespace": namespace,
            "serviceaccount": {
                "name": name,
                "uid": account_uid(namespace, name),
            },
        },
    });
    if let Some(pod) = &request.pod {
        claims["kubernetes.io"]["pod"] = json!(pod);
    }
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!(
        "{}.{}",
        part(json!({ "alg": "ES256", "typ": "JWT" })),
        part(claims)
    );
    let signature = signer.sign(signed.as_bytes()).map_err(|source| SignError {
        account: request.account.clone(),
        source,
    })?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// Returns the uid of a ServiceAccount, which is derived from its name.
pub fn account_uid(namespace: &str, account: &str) -> String {
    digest::uuid(&format!("ServiceAccount {namespace}/{account}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki;

    #[test]
    fn token_has_the_claims_of_kubernetes() {
        let request = TokenRequest {
            account: ObjectKey::new("shop", "web"),
            pod: Some(BoundPod {
                name: "web-1".into(),
                uid: "u".into(),
            }),
            audience: "identity.l5d.io".into(),
            lifetime: Duration::from_secs(86_400),
        };
        let token = sign(&pki::tests::signer(), &request, 1000).unwrap();
        let parts: Vec<Vec<u8>> = token
            .split('.')
            .map(|part| URL_SAFE_NO_PAD.decode(part).unwrap())
            .collect();
        assert_eq!(parts[2].len(), 64);
        let header: serde_json::Value = serde_json::from_slice(&parts[0]).unwrap();
        assert_eq!(header["alg"], "ES256");
        let claims: serde_json::Value = serde_json::from_slice(&parts[1]).unwrap();
        assert_eq!(claims["sub"], "system:serviceaccount:shop:web");
        assert_eq!(claims["aud"], json!(["identity.l5d.io"]));
        assert_eq!(claims["iat"], 1000);
        assert_eq!(claims["exp"], 87_400);
        let bound = json!({ "name": "web-1", "uid": "u" });
        assert_eq!(claims["kubernetes.io"]["pod"], bound);
        assert_eq!(claims["kubernetes.io"]["namespace"], "shop");
    }

    #[test]
    fn lifetime_is_limited_and_renewed_at_80_percent() {
        assert_eq!(lifetime(None), DEFAULT_LIFETIME);
        assert_eq!(lifetime(Some(5)), MIN_LIFETIME);
        assert_eq!(lifetime(Some(-5)), DEFAULT_LIFETIME);
        assert_eq!(lifetime(Some(86_400)).as_secs(), 86_400);
        assert_eq!(renew_after(Duration::from_secs(1000)).as_secs(), 800);
    }
}
