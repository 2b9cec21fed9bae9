//! `HTTPLocalRateLimitPolicy`: how many HTTP requests the proxies of a Server accept.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LocalTargetRef, NamespacedTargetRef};

/// The spec of an `HTTPLocalRateLimitPolicy`: the rates of requests that each proxy of the Server
/// accepts.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "HTTPLocalRateLimitPolicy",
    root = "HttpLocalRateLimitPolicy",
    plural = "httplocalratelimitpolicies",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct HttpLocalRateLimitPolicySpec {
    /// A Server of the same namespace.
    pub target_ref: LocalTargetRef,
    /// The rate of all clients together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<RequestRate>,
    /// The rate of each client identity. Clients without identity count as one client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<RequestRate>,
    /// The rates of certain clients, which replace `identity` for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<Vec<RateOverride>>,
}

/// A rate of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestRate {
    /// At least 1.
    pub requests_per_second: u32,
}

/// The rate that several clients share.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateOverride {
    /// At least 1.
    pub requests_per_second: u32,
    /// The ServiceAccounts of the clients.
    pub client_refs: Vec<NamespacedTargetRef>,
}
