//! `EgressNetwork`: addresses outside the cluster, and what happens to traffic to them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Network;

/// The spec of an `EgressNetwork`. It applies to clients of its namespace; in the global egress
/// namespace, to clients of each namespace without an `EgressNetwork`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1alpha1",
    kind = "EgressNetwork",
    namespaced,
    status = "EgressNetworkStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct EgressNetworkSpec {
    /// What happens to traffic that no route matches.
    pub traffic_policy: TrafficPolicy,
    /// The networks; absent for all addresses outside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Network>>,
}

/// The policy for traffic that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TrafficPolicy {
    /// Forwards to the original destination.
    Allow,
    /// Rejects.
    Deny,
}

/// The status of an `EgressNetwork`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct EgressNetworkStatus {
    /// Whether the controller accepted the networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_optional_and_policy_is_not() {
        let spec = |text: &str| serde_norway::from_str::<EgressNetworkSpec>(text);
        assert_eq!(spec("{trafficPolicy: Allow}").unwrap().networks, None);
        let networks = spec("{trafficPolicy: Deny, networks: [{cidr: 203.0.113.0/24}]}");
        assert_eq!(networks.unwrap().networks.unwrap().len(), 1);
        let error = spec("{networks: []}").unwrap_err().to_string();
        assert!(error.contains("trafficPolicy"), "{error}");
        let error = spec("{trafficPolicy: Perhaps}").unwrap_err().to_string();
        assert!(error.contains("Perhaps"), "{error}");
    }
}
