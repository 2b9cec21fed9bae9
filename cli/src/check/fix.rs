//! Repair commands with the names of the cluster's objects filled in.

use mesh_k8s::kinds::{Pod, ResourceExt};

pub(super) use crate::facts::restarts::{restart_command, workload};

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
            .replace("{mc}", facts.multicluster_namespace())
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

/// Returns the command that reverts the last change of the pod's workload.
pub(super) fn undo_command(pod: &Pod) -> Option<String> {
    let workload = workload(pod)?;
    let namespace = pod.namespace().unwrap_or_default();
    Some(format!("kubectl -n {namespace} rollout undo {workload}"))
}
