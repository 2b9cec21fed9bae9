//! Where the pod is in an object.

use serde_json::Value;

/// What an object means to injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Makes pods; the JSON pointer leads to the pod or its template.
    Workload(&'static str),
    Namespace,
    Service,
    Other,
}

/// The workloads of Kubernetes itself. Another project's kinds are left to the injector of the
/// cluster, which sees their pods.
const WORKLOADS: [(&str, &str, &str); 8] = [
    ("apps", "Deployment", "/spec/template"),
    ("apps", "DaemonSet", "/spec/template"),
    ("apps", "ReplicaSet", "/spec/template"),
    ("apps", "StatefulSet", "/spec/template"),
    ("batch", "CronJob", "/spec/jobTemplate/spec/template"),
    ("batch", "Job", "/spec/template"),
    ("", "Pod", ""),
    ("", "ReplicationController", "/spec/template"),
];

pub(super) fn shape(object: &Value) -> Shape {
    let (group, kind) = group_kind(object);
    let workload = WORKLOADS
        .iter()
        .find(|known| (known.0, known.1) == (group, kind));
    match (workload, group, kind) {
        (Some((_, _, path)), ..) => Shape::Workload(path),
        (None, "", "Namespace") => Shape::Namespace,
        (None, "", "Service") => Shape::Service,
        _ => Shape::Other,
    }
}

/// The objects of a List of any kind.
pub(super) fn items(document: &mut Value) -> Option<&mut Vec<Value>> {
    let (group, kind) = group_kind(document);
    if group.is_empty() && kind == "List" {
        document.get_mut("items")?.as_array_mut()
    } else {
        None
    }
}

/// The group is empty for the core group; versions do not matter, for fields were only added.
fn group_kind(object: &Value) -> (&str, &str) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion")
        .split_once('/')
        .map_or("", |(group, _)| group);
    (group, text("kind"))
}
