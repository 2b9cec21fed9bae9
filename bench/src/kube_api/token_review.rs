//! Reviews of tokens: each token of a ServiceAccount is authenticated, whatever its signature.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub(super) const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Reviews of a controller's own rights. They allow everything.
pub(super) const ACCESS_PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Returns a TokenReview with its status.
pub(super) fn reviewed(mut review: Value) -> Value {
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    review["status"] = match subject(token) {
        Some(subject) => json!({
            "authenticated": true,
            "user": {
                "username": subject,
                "uid": subject,
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "audiences": review["spec"]["audiences"],
        }),
        None => json!({"authenticated": false, "error": "not a token of a ServiceAccount"}),
    };
    review
}

/// Returns a SelfSubjectAccessReview with its status.
pub(super) fn allowed(mut review: Value) -> Value {
    review["status"] = json!({"allowed": true});
    review
}

/// Returns the subject of a JSON Web Token if it is a ServiceAccount.
fn subject(token: &str) -> Option<String> {
    let claims = token.split('.').nth(1)?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    let subject = claims["sub"].as_str()?;
    let is_account = subject.starts_with("system:serviceaccount:");
    is_account.then(|| subject.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_of_a_service_account_is_authenticated_and_others_are_not() {
        let token = |subject: &str| {
            let claims = json!({ "sub": subject }).to_string();
            format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
        };
        let review = |token: &str| {
            let spec = json!({"token": token, "audiences": ["a"]});
            reviewed(json!({ "spec": spec }))["status"].clone()
        };
        let status = review(&token("system:serviceaccount:shop-0:web-0"));
        assert_eq!(status["authenticated"], true);
        assert_eq!(
            status["user"]["username"],
            "system:serviceaccount:shop-0:web-0"
        );
        assert_eq!(status["audiences"], json!(["a"]));
        for other in [
            token("system:admin"),
            "e30.?.c2ln".to_owned(),
            String::new(),
        ] {
            assert_eq!(review(&other)["authenticated"], false, "{other}");
        }
    }
}
