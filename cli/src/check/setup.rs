//! `check --pre`: whether this user can install the mesh on this cluster.

use mesh_k8s::kinds::ResourceExt;

use super::agents::{FOREIGN_CNI, POD_SECURITY};
use super::framework::{Category, Check, CheckResult, Outcome};
use super::kubernetes::NODES_READY;
use crate::facts::{Environment, Facts, Mode, fact_ref};
use crate::output::count;

pub(super) const CATEGORY: Category = Category {
    name: "pre-kubernetes-setup",
    applies: |facts| facts.environment == Environment::Cluster && facts.mode == Mode::Pre,
    checks: &[
        Check::new(
            "pre-ns",
            "the control plane is not installed yet",
            "to upgrade: meshctl upgrade | kubectl apply -f -; to reinstall: meshctl uninstall | kubectl delete -f -",
            not_installed,
        ),
        Check::new(
            "pre-k8s-cluster-k8s",
            "you may create cluster-scoped objects",
            "kubectl create clusterrolebinding my-admin --clusterrole=cluster-admin --user=YOU (as a cluster administrator)",
            |facts| Ok(allowed(facts, false)),
        ),
        Check::new(
            "pre-k8s",
            "you may create objects in the control plane's namespace",
            "kubectl auth can-i --list -n {ns}",
            |facts| Ok(allowed(facts, true)),
        ),
        Check::new(
            "pre-nodes",
            "the nodes can run the mesh",
            "kubectl get nodes -o wide; keep the agent off a node with meshAgent.nodeSelector",
            nodes,
        ),
        NODES_READY,
        POD_SECURITY,
        FOREIGN_CNI,
    ],
};

fn not_installed(facts: &Facts) -> CheckResult {
    Ok(match fact_ref(&facts.objects.config)? {
        None => Outcome::ok(""),
        Some(_) => Outcome::fail(format!(
            "namespace {} has a control plane already (ConfigMap linkerd-config)",
            facts.control_namespace
        )),
    })
}

fn allowed(facts: &Facts, namespaced: bool) -> Outcome {
    let reviews = facts
        .access
        .iter()
        .filter(|access| access.account.is_none() && access.permission.namespaced == namespaced);
    let wrong = reviews.filter_map(|access| match &access.allowed {
        Ok(true) => None,
        Ok(false) => Some(format!("you may not {}", access.permission)),
        Err(error) => Some(format!(
            "cannot determine whether you may {}: {error}",
            access.permission
        )),
    });
    Outcome::fail_if(wrong, "")
}

/// The architectures of the container images.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

fn nodes(facts: &Facts) -> CheckResult {
    let nodes = fact_ref(&facts.objects.nodes)?;
    let (mut wrong, mut kernels) = (Vec::new(), Vec::new());
    for node in nodes {
        let Some(info) = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref())
        else {
            continue;
        };
        let name = node.name_any();
        if info.operating_system != "linux" {
            wrong.push(format!(
                "node {name} runs {}: pods there cannot be meshed",
                info.operating_system
            ));
        } else if !ARCHITECTURES.contains(&info.architecture.as_str()) {
            wrong.push(format!(
                "node {name} is {}: images exist only for {}",
                info.architecture,
                ARCHITECTURES.join(", ")
            ));
        }
        if !kernels.contains(&info.kernel_version) {
            kernels.push(info.kernel_version.clone());
        }
    }
    Ok(Outcome::warn_if(
        wrong,
        format!(
            "{}, kernel {}",
            count(nodes.len(), "node", "nodes"),
            kernels.join(", ")
        ),
    ))
}
