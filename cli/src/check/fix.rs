//! Repair commands with the names of the cluster's objects filled in.

use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;

use crate::facts::Facts;

/// Helm adds this annotation to every object that it installs.
const RELEASE: &str = "meta.helm.sh/release-name";

/// Replaces the placeholders of an advice.
pub(super) fn substitute(text: &str, facts: &Facts) -> String {
    if text.contains('{') {
        text.replace("{upgrade}", &upgrade(facts))
            .replace("{ns}", &facts.control_namespace)
            .replace("{agent-ns}", &facts.agent_namespace())
            .replace("{viz}", facts.viz_namespace())
    } else {
        text.to_owned()
    }
}

/// Returns the upgrade command for the tool that installed the mesh.
fn upgrade(facts: &Facts) -> String {
    let config = facts.objects.config.as_ref().ok().and_then(Option::as_ref);
    let config = config.map(|config| &config.metadata);
    let deployments = facts.objects.deployments.as_deref().unwrap_or_default();
    let metas = config
        .into_iter()
        .chain(deployments.iter().map(|deployment| &deployment.metadata));
    let release = metas
        .filter_map(|meta| meta.annotations.as_ref()?.get(RELEASE))
        .next();
    match release {
        Some(release) => {
            format!(
                "helm upgrade {release} CHART -n {{ns}} --reuse-values (CHART as when it was installed)"
            )
        }
        None => "meshctl upgrade | kubectl apply -f -".to_owned(),
    }
}

/// Returns the `kind/name` of the workload that recreates the pod, if there is one.
pub(super) fn workload(pod: &Pod) -> Option<String> {
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

/// Returns the command that reverts the last change of the pod's workload.
pub(super) fn undo_command(pod: &Pod) -> Option<String> {
    let workload = workload(pod)?;
    let namespace = pod.namespace().unwrap_or_default();
    Some(format!("kubectl -n {namespace} rollout undo {workload}"))
}

/// Returns the command that replaces the pod.
pub(super) fn restart_command(pod: &Pod) -> String {
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
