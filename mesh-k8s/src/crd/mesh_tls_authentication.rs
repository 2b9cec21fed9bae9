//! `MeshTLSAuthentication`: a set of client identities.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NamespacedTargetRef;

#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "MeshTLSAuthentication",
    shortname = "meshtlsauthn",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct MeshTLSAuthenticationSpec {
    /// DNS-like or `spiffe://` identities; `*` and `*.suffix` match many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<Vec<String>>,
    /// ServiceAccounts, or Namespaces for all accounts in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_refs: Option<Vec<NamespacedTargetRef>>,
}
