//! The observer of a node: the only identity that may tap its proxies. The tap API of clusters has
//! the same identity. No pod of the node may have its account, and the daemon issues tokens for it
//! only on the control socket, which only root may use. With a token, `meshctl viz tap` and
//! `meshctl local dashboard` get a certificate from the node's identity controller, as proxies do.

use jiff::Timestamp;
use mesh_core::identity::service_account;
use mesh_k8s::inject::{TOKEN_AUDIENCE, Values};
use serde::{Deserialize, Serialize};

use crate::manifest::ObjectKey;
use crate::pki::TokenSigner;
use crate::token::{self, SignError, TokenRequest};

/// The namespace of the viz extension, as on a cluster.
pub const NAMESPACE: &str = "linkerd-viz";
/// The name of the account, as on a cluster.
const ACCOUNT: &str = "tap";

/// What a client needs to get a certificate of the observer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observer {
    pub identity: String,
    /// A token of the account for the identity controller, valid for ten minutes.
    pub token: String,
    /// The trust anchors of the node's proxies, in PEM.
    pub trust_anchors: String,
}

/// Returns the identity of the observer.
pub fn identity(values: &Values) -> String {
    service_account(ACCOUNT, NAMESPACE, &values.namespace, values.trust_domain())
}

/// Checks that a pod does not have the account of the observer.
pub fn check_account(namespace: &str, account: &str) -> Result<(), String> {
    if (namespace, account) == (NAMESPACE, ACCOUNT) {
        return Err(format!(
            "spec.serviceAccountName: the account {ACCOUNT} of namespace {NAMESPACE} may tap all proxies of a local node, which is reserved for root (`meshctl viz tap`); use another account or namespace"
        ));
    }
    Ok(())
}

/// Signs a token of the observer.
pub(crate) fn issue(signer: &TokenSigner, values: &Values) -> Result<Observer, SignError> {
    let request = TokenRequest {
        account: ObjectKey::new(NAMESPACE, ACCOUNT),
        pod: None,
        audience: TOKEN_AUDIENCE.to_owned(),
        lifetime: token::MIN_LIFETIME,
    };
    Ok(Observer {
        identity: identity(values),
        token: token::sign(signer, &request, Timestamp::now().as_second())?,
        trust_anchors: values.identity_trust_anchors_pem.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_that_of_the_tap_api() {
        let expected = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local";
        assert_eq!(identity(&Values::default()), expected);
    }

    #[test]
    fn only_the_account_of_the_observer_is_reserved() {
        assert!(check_account("linkerd-viz", "web").is_ok());
        assert!(check_account("shop", "tap").is_ok());
        let error = check_account("linkerd-viz", "tap").unwrap_err();
        assert!(error.starts_with("spec.serviceAccountName: "), "{error}");
    }
}
