//! `TLSRoute` and `TCPRoute` of the Gateway API, in every version that API servers serve: `v1`,
//! `v1alpha3` and `v1alpha2`.
//!
//! The crate of the Gateway API has types of single versions: its TLSRoute requires hostnames,
//! which older versions do not, and its TCPRoute belongs to the experimental channel. Fields that a
//! version lacks are optional here. The types of parents and backends come from the crate.

use gateway_api::httproutes::{HttpRouteParentRefs, HttpRouteStatus};
use gateway_api::tlsroutes::TlsRouteRulesBackendRefs;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of a `TLSRoute`, which selects backends of TLS connections by their server name.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "TLSRoute",
    root = "TlsRoute",
    plural = "tlsroutes",
    status = "HttpRouteStatus",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct TlsRouteSpec {
    /// The Services or EgressNetworks that the route attaches to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<HttpRouteParentRefs>>,
    /// The server names that the route matches; absent or empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rule of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<ConnectionRule>>,
}

/// The spec of a `TCPRoute`, which selects backends of TCP connections.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "TCPRoute",
    root = "TcpRoute",
    plural = "tcproutes",
    status = "HttpRouteStatus",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct TcpRouteSpec {
    /// The Services or EgressNetworks that the route attaches to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<HttpRouteParentRefs>>,
    /// The rule of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<ConnectionRule>>,
}

/// A rule of a `TLSRoute` or `TCPRoute`. It has no matches, so every connection of its route
/// follows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionRule {
    /// The name of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The backends; absent or empty for the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_refs: Option<Vec<TlsRouteRulesBackendRefs>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_served_version_is_read() {
        let spec = "spec:
  parentRefs: [{group: core, kind: Service, name: web, port: 443}]
  rules: [{backendRefs: [{name: web, port: 443, weight: 3}]}]
";
        for version in ["v1", "v1alpha3", "v1alpha2"] {
            let tls: TlsRoute = serde_norway::from_str(&format!(
                "apiVersion: gateway.networking.k8s.io/{version}\nkind: TLSRoute\nmetadata: {{name: a}}\n{spec}"
            ))
            .unwrap();
            assert_eq!(tls.spec.hostnames, None, "{version}");
            let tcp: TcpRoute = serde_norway::from_str(&format!(
                "apiVersion: gateway.networking.k8s.io/{version}\nkind: TCPRoute\nmetadata: {{name: a}}\n{spec}"
            ))
            .unwrap();
            assert_eq!(tcp.spec.rules, tls.spec.rules);
            let backends = tcp.spec.rules.unwrap()[0].backend_refs.clone().unwrap();
            assert_eq!(backends[0].weight, Some(3), "{version}");
        }
    }
}
