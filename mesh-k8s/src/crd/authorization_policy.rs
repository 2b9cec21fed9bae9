//! `AuthorizationPolicy`: which clients are authorized to connect to its target.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LocalTargetRef, NamespacedTargetRef};

/// The spec of an `AuthorizationPolicy`: a client that satisfies every required authentication is
/// authorized to connect to the target.
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
    /// A Server, the namespace of the policy, or a route.
    pub target_ref: LocalTargetRef,
    /// The authentications that a client must satisfy. An empty list authorizes every client. The
    /// field is required, so that a missing or misspelled field does not authorize every client.
    pub required_authentication_refs: Vec<NamespacedTargetRef>,
}
