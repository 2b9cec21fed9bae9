//! What to do about an image that a node cannot pull.

use mesh_k8s::kinds::{Pod, ResourceExt};

use super::fix;

/// What registries answer to a client without the right credentials.
const REFUSALS: [&str; 5] = [
    "unauthorized",
    "forbidden",
    "denied",
    "authentication required",
    "no basic auth credentials",
];

/// Returns the repair for an image by the kubelet's message.
pub(super) fn fix(pod: &Pod, image: &str, message: &str) -> String {
    let message = message.to_ascii_lowercase();
    if REFUSALS.iter().any(|refusal| message.contains(refusal)) {
        return credentials(pod, image);
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let load = format!(
        "load the image {image} into {} or correct its name",
        node.map_or_else(|| "its node".to_owned(), |node| format!("node {node}")),
    );
    match fix::undo_command(pod) {
        Some(undo) => format!("{undo}, if a change caused it; otherwise {load}"),
        None => load,
    }
}

/// Returns what gives the kubelet the credentials of a registry.
fn credentials(pod: &Pod, image: &str) -> String {
    let namespace = pod.namespace().unwrap_or_default();
    let secrets = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.image_pull_secrets.as_ref());
    let names: Vec<&str> = secrets
        .into_iter()
        .flatten()
        .map(|secret| secret.name.as_str())
        .collect();
    match names.first() {
        Some(first) => format!(
            "kubectl -n {namespace} get secret {}; if one is missing or has not the credentials for {image}: kubectl -n {namespace} create secret docker-registry {first} --docker-server=REGISTRY --docker-username=NAME --docker-password=PASSWORD",
            names.join(" ")
        ),
        None => format!(
            "kubectl -n {namespace} create secret docker-registry NAME --docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD with the credentials for {image}, and name it in imagePullSecrets: a value of the chart, or of the pod's ServiceAccount"
        ),
    }
}
