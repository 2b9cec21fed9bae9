//! The kinds that the front serves: their paths, and the discovery of groups and kinds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A kind that the front serves.
pub(super) struct Api {
    /// Empty for the core group.
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
}

/// All kinds. Only the kinds of a cluster with Services and pods have objects.
pub(super) const APIS: [Api; 31] = [
    api("", "v1", "pods", "Pod"),
    api("", "v1", "services", "Service"),
    api("", "v1", "nodes", "Node"),
    api("", "v1", "namespaces", "Namespace"),
    api("", "v1", "configmaps", "ConfigMap"),
    api("", "v1", "secrets", "Secret"),
    api("", "v1", "serviceaccounts", "ServiceAccount"),
    api(ADMISSION, "v1", MUTATING, "MutatingWebhookConfiguration"),
    api(
        ADMISSION,
        "v1",
        VALIDATING,
        "ValidatingWebhookConfiguration",
    ),
    api("apps", "v1", "deployments", "Deployment"),
    api("apps", "v1", "replicasets", "ReplicaSet"),
    api("batch", "v1", "jobs", "Job"),
    api("coordination.k8s.io", "v1", "leases", "Lease"),
    api("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    api("networking.k8s.io", "v1", "ingresses", "Ingress"),
    api("networking.k8s.io", "v1", "ingressclasses", "IngressClass"),
    api(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
    ),
    api(POLICY, "v1beta3", "servers", "Server"),
    api(
        POLICY,
        "v1beta1",
        "serverauthorizations",
        "ServerAuthorization",
    ),
    api(
        POLICY,
        "v1alpha1",
        "authorizationpolicies",
        "AuthorizationPolicy",
    ),
    api(
        POLICY,
        "v1alpha1",
        "meshtlsauthentications",
        "MeshTLSAuthentication",
    ),
    api(
        POLICY,
        "v1alpha1",
        "networkauthentications",
        "NetworkAuthentication",
    ),
    api(
        POLICY,
        "v1alpha1",
        "httplocalratelimitpolicies",
        "HTTPLocalRateLimitPolicy",
    ),
    api(POLICY, "v1alpha1", "egressnetworks", "EgressNetwork"),
    api(POLICY, "v1beta3", "httproutes", "HTTPRoute"),
    api(
        "workload.linkerd.io",
        "v1beta1",
        "externalworkloads",
        "ExternalWorkload",
    ),
    api(
        "linkerd.io",
        "v1alpha2",
        "serviceprofiles",
        "ServiceProfile",
    ),
    api(GATEWAY, "v1", "httproutes", "HTTPRoute"),
    api(GATEWAY, "v1", "grpcroutes", "GRPCRoute"),
    api(GATEWAY, "v1", "tlsroutes", "TLSRoute"),
    api(GATEWAY, "v1", "tcproutes", "TCPRoute"),
];

const ADMISSION: &str = "admissionregistration.k8s.io";
const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";
const POLICY: &str = "policy.linkerd.io";
const GATEWAY: &str = "gateway.networking.k8s.io";

const fn api(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Api {
    Api {
        group,
        version,
        plural,
        kind,
    }
}

impl Api {
    pub(super) fn group_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the path of the list of all namespaces.
    pub(super) fn path(&self) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        format!("/{root}/{}/{}", self.group_version(), self.plural)
    }
}

/// Returns the groups with their versions, as `GET /apis` responds.
pub(super) fn groups() -> Value {
    let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for api in APIS.iter().filter(|api| !api.group.is_empty()) {
        let version = json!({"groupVersion": api.group_version(), "version": api.version});
        let versions = groups.entry(api.group).or_default();
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let groups = groups.into_iter().map(|(name, versions)| {
        json!({"name": name, "preferredVersion": versions[0], "versions": versions})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
}

/// Returns the kinds of a group and version, as `GET /apis/GROUP/VERSION` responds, or `None` if
/// there are none.
pub(super) fn resources(path: &str) -> Option<Value> {
    let is_in = |api: &&Api| api.path().strip_suffix(api.plural) == Some(&format!("{path}/"));
    let found: Vec<&Api> = APIS.iter().filter(is_in).collect();
    let group_version = found.first()?.group_version();
    let resources = found.iter().map(|api| {
        json!({
            "name": api.plural, "kind": api.kind, "singularName": "", "namespaced": true,
            "verbs": ["get", "list", "watch"],
        })
    });
    let resources: Vec<Value> = resources.collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version, "resources": resources,
    }))
}

/// Returns the version of the API server that the front passes itself off as.
pub(super) fn version() -> Value {
    json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_lists_its_kinds() {
        for group in groups()["groups"].as_array().expect("groups") {
            for version in group["versions"].as_array().expect("versions") {
                let path = format!("/apis/{}", version["groupVersion"].as_str().expect("text"));
                let resources = resources(&path).expect("it is served");
                for resource in resources["resources"].as_array().expect("kinds") {
                    let path = format!("{path}/{}", resource["name"].as_str().expect("text"));
                    assert!(APIS.iter().any(|api| api.path() == path), "{path}");
                }
            }
        }
        assert!(resources("/apis/example.com/v1").is_none());
    }
}
