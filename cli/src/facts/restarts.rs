//! How pods are replaced.

use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;

/// Returns the `kind/name` of the workload that recreates the pod, if there is one.
pub(crate) fn workload(pod: &Pod) -> Option<String> {
    let owner = pod.owner_references().first()?;
    let kind = owner.kind.to_ascii_lowercase();
    // The owner of a Deployment's pods is a ReplicaSet, whose name ends in the value of this label.
    let of_deployment = (kind == "replicaset")
        .then(|| pod::label(pod, "pod-template-hash"))
        .flatten()
        .and_then(|hash| owner.name.strip_suffix(hash)?.strip_suffix('-'));
    Some(match of_deployment {
        Some(deployment) => format!("deployment/{deployment}"),
        None => format!("{kind}/{}", owner.name),
    })
}

/// Returns the command that replaces the pod.
pub(crate) fn restart_command(pod: &Pod) -> String {
    let namespace = pod.namespace().unwrap_or_default();
    match workload(pod) {
        Some(workload) if !workload.starts_with("job/") && !workload.starts_with("replicaset/") => {
            format!("kubectl -n {namespace} rollout restart {workload}")
        }
        Some(_) => format!("kubectl -n {namespace} delete pod {}", pod.name_any()),
        None => format!(
            "kubectl -n {namespace} delete pod {}, then create it again from its manifest",
            pod.name_any()
        ),
    }
}
