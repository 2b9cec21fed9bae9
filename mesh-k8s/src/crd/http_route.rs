//! Linkerd's own `HTTPRoute`, a subset of the Gateway API's.
//!
//! The types of parents, rules, filters and timeouts come from the Gateway API, so that one
//! conversion serves both kinds. A parent can be a Server here: the types allow it, although the
//! validation of the Gateway API would reject it.

use std::time::Duration;

use gateway_api::httproutes::{HttpRouteParentRefs, HttpRouteRules, HttpRouteStatus};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of Linkerd's `HTTPRoute`. It is serialized as `v1beta3`; `v1alpha1` (without timeouts
/// and backends), `v1beta1` and `v1beta2` are read as well.
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
    /// The Servers or Services that the route attaches to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_refs: Option<Vec<HttpRouteParentRefs>>,
    /// The hostnames that the route matches; absent or empty for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostnames: Option<Vec<String>>,
    /// The rules of the route: matches, filters, backends and timeouts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<HttpRouteRules>>,
}

/// Parses a duration of the Gateway API such as `1h30m` or `500ms`.
///
/// # Errors
///
/// The text is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration: gateway_api::Duration = text
        .parse()
        .map_err(|error| format!("{text:?} is not a duration: {error}"))?;
    Ok(Duration::new(duration.as_secs(), duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_with_server_parent_is_read() {
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
