//! The tokens that prove to the identity service which pod asks, with the claims that Kubernetes
//! puts in.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use crate::{digest, manifest::Key, pki::TokenSigner};

/// Who makes the tokens, as a cluster's API server would name itself.
const ISSUER: &str = "https://mesh-local.cluster.local";
/// Kubernetes makes no token for less.
const SHORTEST: Duration = Duration::from_secs(600);
const DEFAULT: Duration = Duration::from_secs(3600);

/// Whom and what a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    pub pod: Key,
    pub pod_uid: String,
    pub service_account: String,
    pub audience: String,
    pub lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("sign the token of pod {pod} (the random number generator or the key failed)")]
pub struct SignError {
    pod: Key,
    #[source]
    source: aws_lc_rs::error::Unspecified,
}

/// The lifetime that a projected volume asks for, within the bounds of Kubernetes.
pub fn lifetime(expiration_seconds: Option<i64>) -> Duration {
    match expiration_seconds.map(u64::try_from) {
        Some(Ok(seconds)) => Duration::from_secs(seconds).max(SHORTEST),
        _ => DEFAULT,
    }
}

/// When a token is replaced: at four fifths of its life, as the kubelet does.
pub fn renew_after(lifetime: Duration) -> Duration {
    lifetime * 4 / 5
}

/// Signs a token that is valid from `now`, in seconds of the Unix epoch.
pub fn sign(signer: &TokenSigner, request: &TokenRequest, now: i64) -> Result<String, SignError> {
    let Key { namespace, name } = &request.pod;
    let account = &request.service_account;
    let expires = now.saturating_add_unsigned(request.lifetime.as_secs());
    let claims = json!({
        "iss": ISSUER,
        "sub": format!("system:serviceaccount:{namespace}:{account}"),
        "aud": [request.audience],
        "iat": now,
        "nbf": now,
        "exp": expires,
        "kubernetes.io": {
            "namespace": namespace,
            "serviceaccount": {
                "name": account,
                "uid": account_uid(namespace, account),
            },
            "pod": { "name": name, "uid": request.pod_uid },
        },
    });
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!(
        "{}.{}",
        part(json!({ "alg": "ES256", "typ": "JWT" })),
        part(claims)
    );
    let signature = signer.sign(signed.as_bytes()).map_err(|source| SignError {
        pod: request.pod.clone(),
        source,
    })?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// Accounts of a local node are what their name is: they have the same uid on every run.
pub fn account_uid(namespace: &str, account: &str) -> String {
    digest::uuid(&format!("ServiceAccount {namespace}/{account}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki;

    #[test]
    fn claims_are_those_of_kubernetes() {
        let request = TokenRequest {
            pod: Key::new("shop", "web-1"),
            pod_uid: "u".into(),
            service_account: "web".into(),
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
        assert_eq!(
            (claims["iat"].clone(), claims["exp"].clone()),
            (json!(1000), json!(87_400))
        );
        assert_eq!(claims["kubernetes.io"]["pod"]["name"], "web-1");
        assert_eq!(claims["kubernetes.io"]["namespace"], "shop");
    }

    #[test]
    fn lifetimes_are_bounded() {
        assert_eq!(lifetime(None), DEFAULT);
        assert_eq!(lifetime(Some(5)), SHORTEST);
        assert_eq!(lifetime(Some(-5)), DEFAULT);
        assert_eq!(lifetime(Some(86_400)).as_secs(), 86_400);
        assert_eq!(renew_after(Duration::from_secs(1000)).as_secs(), 800);
    }
}
