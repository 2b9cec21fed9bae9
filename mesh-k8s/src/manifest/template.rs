//! The pod or pod template of an object.

use serde_json::Value;

/// The role of an object in injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectRole {
    /// A pod or a controller of pods, with the JSON pointer of the pod or pod template.
    Workload(&'static str),
    Namespace,
    Service,
    Other,
}

/// The workloads of Kubernetes. The pods of other kinds are injected by the cluster's injector.
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

pub(super) fn object_role(object: &Value) -> ObjectRole {
    let (group, kind) = group_kind(object);
    let workload = WORKLOADS
        .iter()
        .find(|known| (known.0, known.1) == (group, kind));
    match (workload, group, kind) {
        (Some((_, _, path)), ..) => ObjectRole::Workload(path),
        (None, "", "Namespace") => ObjectRole::Namespace,
        (None, "", "Service") => ObjectRole::Service,
        _ => ObjectRole::Other,
    }
}

/// Returns the items of a List.
pub(super) fn items(document: &mut Value) -> Option<&mut Vec<Value>> {
    let (group, kind) = group_kind(document);
    if group.is_empty() && kind == "List" {
        document.get_mut("items")?.as_array_mut()
    } else {
        None
    }
}

/// Returns group and kind; the core group is empty. Versions are ignored, because the pod template
/// is at the same place in all of them.
fn group_kind(object: &Value) -> (&str, &str) {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion")
        .split_once('/')
        .map_or("", |(group, _)| group);
    (group, text("kind"))
}
