//! `MeshTLSAuthentication`: a set of client identities.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NamespacedTargetRef;

/// The spec of a `MeshTLSAuthentication`: clients whose mTLS identity is listed satisfy it.
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
    /// DNS or `spiffe://` identities. `*` matches every identity, `*.suffix` each identity below
    /// the suffix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<Vec<String>>,
    /// ServiceAccounts, or Namespaces for all of their ServiceAccounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_refs: Option<Vec<NamespacedTargetRef>>,
}
