//! Computes the rows of `meshctl authz` from pods and policy objects.

use std::collections::BTreeMap;

use mesh_k8s::crd::{AuthorizationPolicy, PolicyHttpRoute, Server};
use mesh_k8s::kinds::{LabelSelector, Namespace, ResourceExt};
use mesh_k8s::select;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::mesh::MeshPod;

/// A Server's port, optionally a route of it, and an authorization of its clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) server: String,
    pub(super) port: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) route: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) authorization_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_authorization: Option<String>,
    /// The policy for clients without authorization.
    pub(super) access_policy: String,
}

/// Returns a row for each authorization of the pods' Servers and routes, and one for each without
/// authorization.
pub(super) fn rows(pods: &[MeshPod], objects: &[Value]) -> Vec<Row> {
    let policies: Vec<AuthorizationPolicy> = read(objects, "AuthorizationPolicy");
    let routes: Vec<PolicyHttpRoute> = read(objects, "HTTPRoute");
    let mut rows = Vec::new();
    for server in read::<Server>(objects, "Server") {
        if !pods.iter().any(|pod| selects(&server, pod)) {
            continue;
        }
        let base = Row {
            server: server.name_any(),
            port: server.spec.port.to_string(),
            route: None,
            authorization_policy: None,
            server_authorization: None,
            access_policy: server.spec.access_policy.to_string(),
        };
        rows.extend(rows_of_server(&server, &base, &policies, objects));
        let of_server = routes
            .iter()
            .filter(|route| route.namespace() == server.namespace() && has_parent(route, &server));
        for route in of_server {
            rows.extend(rows_of_route(route, &base, &policies));
        }
    }
    rows.sort();
    rows.dedup();
    rows
}

fn rows_of_server(
    server: &Server,
    base: &Row,
    policies: &[AuthorizationPolicy],
    objects: &[Value],
) -> Vec<Row> {
    let here = policies
        .iter()
        .filter(|policy| policy.namespace() == server.namespace());
    let applies = |policy: &&AuthorizationPolicy| {
        let target = &policy.spec.target_ref;
        target.targets::<Namespace>()
            || target.targets::<Server>() && target.name == server.name_any()
    };
    let mut rows: Vec<Row> = here
        .filter(applies)
        .map(|policy| Row {
            authorization_policy: Some(policy.name_any()),
            ..base.clone()
        })
        .collect();
    let server_authorizations = objects
        .iter()
        .filter(|object| object["kind"] == "ServerAuthorization" && authorizes(object, server));
    rows.extend(server_authorizations.map(|object| Row {
        server_authorization: object["metadata"]["name"].as_str().map(str::to_owned),
        ..base.clone()
    }));
    if rows.is_empty() {
        rows.push(base.clone());
    }
    rows
}

fn rows_of_route(
    route: &PolicyHttpRoute,
    base: &Row,
    policies: &[AuthorizationPolicy],
) -> Vec<Row> {
    let base = Row {
        route: Some(route.name_any()),
        ..base.clone()
    };
    let own = policies.iter().filter(|policy| {
        let target = &policy.spec.target_ref;
        policy.namespace() == route.namespace()
            && target.kind.eq_ignore_ascii_case("HTTPRoute")
            && target.name == route.name_any()
    });
    let rows: Vec<Row> = own
        .map(|policy| Row {
            authorization_policy: Some(policy.name_any()),
            ..base.clone()
        })
        .collect();
    if rows.is_empty() { vec![base] } else { rows }
}

fn selects(server: &Server, pod: &MeshPod) -> bool {
    let labels: BTreeMap<String, String> = pod.labels.iter().cloned().collect();
    server.namespace().as_deref() == Some(&pod.namespace)
        && server
            .spec
            .pod_selector
            .as_ref()
            .is_some_and(|selector| select::matches(selector, Some(&labels)))
}

fn has_parent(route: &PolicyHttpRoute, server: &Server) -> bool {
    let parents = route.spec.parent_refs.iter().flatten();
    parents
        .filter(|parent| parent.kind.as_deref() == Some("Server"))
        .any(|parent| parent.name == server.name_any())
}

/// Returns whether a ServerAuthorization selects the Server by name or by labels.
fn authorizes(object: &Value, server: &Server) -> bool {
    let reference = &object["spec"]["server"];
    let same_namespace = object["metadata"]["namespace"].as_str() == server.namespace().as_deref();
    let by_name = reference["name"].as_str() == Some(&server.name_any());
    let selector = serde_json::from_value::<LabelSelector>(reference["selector"].clone());
    let by_labels = reference["selector"].is_object()
        && selector
            .is_ok_and(|selector| select::matches(&selector, server.metadata.labels.as_ref()));
    same_namespace && (by_name || by_labels)
}

/// Returns the valid objects of a kind; the check `policy-readable` reports the others.
fn read<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .filter_map(|object| serde_json::from_value(object.clone()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: &str = r#"[
      {"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "web", "namespace": "shop"},
       "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": 8080, "accessPolicy": "deny"}},
      {"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "admin", "namespace": "shop"},
       "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": "admin"}},
      {"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "db", "namespace": "shop"},
       "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "port": 5432}},
      {"apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute", "metadata": {"name": "get", "namespace": "shop"},
       "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "web"}]}},
      {"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": {"name": "clients", "namespace": "shop"},
       "spec": {"targetRef": {"group": "policy.linkerd.io", "kind": "HTTPRoute", "name": "get"}, "requiredAuthenticationRefs": []}},
      {"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": {"name": "operators", "namespace": "shop"},
       "spec": {"targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "web"}, "requiredAuthenticationRefs": []}},
      {"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": {"name": "operators", "namespace": "other"},
       "spec": {"targetRef": {"kind": "Namespace", "name": "other"}, "requiredAuthenticationRefs": []}},
      {"apiVersion": "policy.linkerd.io/v1beta1", "kind": "ServerAuthorization", "metadata": {"name": "old", "namespace": "shop"},
       "spec": {"server": {"name": "admin"}, "client": {"unauthenticated": true}}}
    ]"#;

    #[test]
    fn every_way_into_a_workload() {
        let pod = serde_json::from_str(
            r#"{"metadata": {"name": "web-0", "namespace": "shop", "labels": {"app": "web"}}}"#,
        );
        let pods = [MeshPod::new(&pod.unwrap(), &[])];
        let objects: Vec<Value> = serde_json::from_str(OBJECTS).unwrap();
        let text: Vec<String> = rows(&pods, &objects)
            .iter()
            .map(|row| {
                let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
                format!(
                    "{} {} {} {} {} {}",
                    row.server,
                    row.port,
                    or(&row.route),
                    or(&row.authorization_policy),
                    or(&row.server_authorization),
                    row.access_policy
                )
            })
            .collect();
        assert_eq!(
            text,
            [
                "admin admin - - old deny",
                "web 8080 - operators - deny",
                "web 8080 get clients - deny",
            ]
        );
    }
}
