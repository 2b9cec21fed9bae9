//! An installation as an API server of a test has it: the objects that a report of it is made of.
//! Used by the tests of the report.

use serde_json::{Value, json};

/// Returns the object at a path, in an installation whose control plane is in `namespace`, with
/// this uid and these values, since 2026-01-01; `None` for a response of 404. It has the viz
/// extension, five ServiceProfiles and Kubernetes 1.34.1.
pub fn object(path: &str, namespace: &str, uid: &str, values: &str) -> Option<Value> {
    let config = format!("/api/v1/namespaces/{namespace}/configmaps/linkerd-config");
    Some(match path {
        _ if path == config => json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "linkerd-config", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "data": { "values": values },
        }),
        "/version" => json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "",
            "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        }),
        "/api/v1/namespaces" => metadata_list(
            &json!({}),
            &json!({ "name": "linkerd-viz", "labels": { "linkerd.io/extension": "viz" } }),
        ),
        "/apis/linkerd.io/v1alpha2/serviceprofiles" => metadata_list(
            &json!({ "continue": "t", "remainingItemCount": 4 }),
            &json!({ "name": "web", "namespace": "shop" }),
        ),
        _ => return None,
    })
}

fn metadata_list(list: &Value, metadata: &Value) -> Value {
    let (api_version, kind) = ("meta.k8s.io/v1", "PartialObjectMetadata");
    let item = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
    json!({
        "apiVersion": api_version, "kind": format!("{kind}List"),
        "metadata": list, "items": [item],
    })
}
