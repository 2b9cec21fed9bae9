//! Linkerd's own `HTTPRoute`, a subset of the Gateway API's.
//!
//! Parents, rules, filters and timeouts have the Gateway API's shape, so the types are the Gateway
//! API's too and one conversion serves both kinds. It also means that a parent may be a Server
//! here, which the Gateway API's validation would refuse but its types express.

use gateway_api::httproutes::{HttpRouteParentRefs, HttpRouteRules, HttpRouteStatus};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Written as `v1beta3`; `v1alpha1` (no timeouts, no backends), `v1beta1` and `v1beta2` are read
/// too.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1beta3",
    kind = "HTTPRoute",
    root = "HttpRoute",
    plural = "httproutes",
    status = "HttpRouteStatus",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct HttpRouteSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<HttpRouteParentRefs>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<HttpRouteRules>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_route_of_a_server() {
        let route: HttpRoute = serde_norway::from_str(
            "apiVersion: policy.linkerd.io/v1beta1\nkind: HTTPRoute\nmetadata: {name: get, namespace: shop}\n\
             spec:\n  parentRefs: [{group: policy.linkerd.io, kind: Server, name: web}]\n  rules:\n  - matches:\n    \
             - {path: {value: /a, type: PathPrefix}, method: GET}\n",
        )
        .unwrap();
        let parents = route.spec.parent_refs.unwrap();
        assert_eq!(parents[0].kind.as_deref(), Some("Server"));
        let rules = route.spec.rules.unwrap();
        let path = rules[0].matches.as_ref().unwrap()[0].path.as_ref().unwrap();
        assert_eq!(path.value.as_deref(), Some("/a"));
    }
}
