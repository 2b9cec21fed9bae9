//! `AuthorizationPolicy`: clients that satisfy every authentication it names may use its target.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LocalTargetRef, NamespacedTargetRef};

#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "AuthorizationPolicy",
    plural = "authorizationpolicies",
    shortname = "authzpolicy",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct AuthorizationPolicySpec {
    /// A Server, the policy's own Namespace, or a route.
    pub target_ref: LocalTargetRef,
    /// Empty allows every client. It must be there even so: to forget it, or to misspell it, must
    /// not allow everybody.
    pub required_authentication_refs: Vec<NamespacedTargetRef>,
}
