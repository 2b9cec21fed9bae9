//! `check --pre`: can the mesh be installed on this cluster, by this user.

use mesh_k8s::kinds::ResourceExt;

use super::{
    Category, Check, Ends, Facts, Mode, On, Outcome, Place, Verdict, count,
    facts::{Permission, see},
};

pub(super) const CATEGORY: Category = Category {
    name: "pre-kubernetes-setup",
    applies: |facts| facts.place == Place::Cluster && facts.mode == Mode::Pre,
    checks: &[
        Check {
            anchor: "pre-ns",
            description: "the control plane is not installed yet",
            advice: "to upgrade: meshctl upgrade | kubectl apply -f -; to start anew: meshctl uninstall | kubectl delete -f -",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: not_installed,
        },
        Check {
            anchor: "pre-k8s-cluster-k8s",
            description: "you may create objects of the whole cluster",
            advice: "kubectl create clusterrolebinding my-admin --clusterrole=cluster-admin --user=YOU (as somebody who may)",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: |facts| Ok(allowed(facts, false)),
        },
        Check {
            anchor: "pre-k8s",
            description: "you may create objects of the control plane's namespace",
            advice: "kubectl auth can-i --list -n {ns}",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: |facts| Ok(allowed(facts, true)),
        },
        Check {
            anchor: "pre-nodes",
            description: "the nodes can run the mesh",
            advice: "kubectl get nodes -o wide; keep the agent off a node with meshAgent.nodeSelector",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: nodes,
        },
        super::kubernetes::NODES_READY,
        POD_SECURITY,
        super::agents::FOREIGN_CNI,
    ],
};

/// Also afterwards: an agent that runs is not asked again, one that is replaced is refused.
pub(super) const POD_SECURITY: Check = Check {
    anchor: "pre-pod-security",
    description: "the control plane's namespace admits the node agent",
    advice: "kubectl label namespace {ns} --overwrite pod-security.kubernetes.io/enforce=privileged",
    explained_by: &[],
    ends: Ends::Nothing,
    on: On::Cluster,
    look: pod_security,
};

/// What installing takes. The first of each list is the kind that people most often may not create.
pub(super) const NEEDED: [Permission; 16] = [
    cluster("", "namespaces"),
    cluster("apiextensions.k8s.io", "customresourcedefinitions"),
    cluster("rbac.authorization.k8s.io", "clusterroles"),
    cluster("rbac.authorization.k8s.io", "clusterrolebindings"),
    cluster(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
    ),
    cluster(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
    ),
    own("", "serviceaccounts"),
    own("", "services"),
    own("", "configmaps"),
    own("", "secrets"),
    own("apps", "deployments"),
    own("apps", "daemonsets"),
    own("batch", "jobs"),
    own("batch", "cronjobs"),
    cluster(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
    ),
    cluster(
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
    ),
];

const fn cluster(group: &'static str, resource: &'static str) -> Permission {
    Permission {
        verb: "create",
        group,
        resource,
        namespaced: false,
    }
}

const fn own(group: &'static str, resource: &'static str) -> Permission {
    Permission {
        verb: "create",
        group,
        resource,
        namespaced: true,
    }
}

fn not_installed(facts: &Facts) -> Verdict {
    Ok(match see(&facts.objects.config)? {
        None => Outcome::ok(""),
        Some(_) => Outcome::fail(format!(
            "namespace {} has a control plane already (ConfigMap linkerd-config)",
            facts.control_namespace
        )),
    })
}

fn allowed(facts: &Facts, namespaced: bool) -> Outcome {
    let mine = facts
        .access
        .iter()
        .filter(|access| access.who.is_none() && access.what.namespaced == namespaced);
    let wrong = mine.filter_map(|access| match &access.allowed {
        Ok(true) => None,
        Ok(false) => Some(format!("you may not {}", access.what)),
        Err(error) => Some(format!("may you {}? {error}", access.what)),
    });
    Outcome::fail_if(wrong.collect(), "")
}

/// Images are built for these.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

fn nodes(facts: &Facts) -> Verdict {
    let nodes = see(&facts.objects.nodes)?;
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
                "node {name} is {}: there are images for {}",
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

/// The agent uses the node's network and directories, which only this level admits. A namespace
/// without the label has the cluster's default, mostly privileged.
fn pod_security(facts: &Facts) -> Verdict {
    let level = facts
        .namespace(&facts.control_namespace)
        .and_then(|namespace| {
            namespace
                .labels()
                .get("pod-security.kubernetes.io/enforce")
                .cloned()
        });
    Ok(match level.as_deref() {
        None | Some("privileged") => Outcome::ok(""),
        Some(level) => Outcome::fail(format!(
            "namespace {} enforces {level:?}; the node agent needs \"privileged\"",
            facts.control_namespace
        )),
    })
}
