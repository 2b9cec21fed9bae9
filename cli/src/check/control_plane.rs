//! The control plane: its objects, its pods, its proxies, and whether they agree with what the
//! chart wrote down.

mod config;
mod pods;

pub(super) use pods::{COMPONENTS, container_problems, is_agent, may_answer, problem_of};

use super::{
    Category, Check, Ends, Facts, On, Outcome, Place,
    causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST},
    facts::see,
};

const INSTALLED: fn(&Facts) -> bool =
    |facts| facts.place != Place::Machine && facts.is_installed_mode();

pub(super) const EXISTENCE: Category = Category {
    name: "linkerd-existence",
    applies: INSTALLED,
    checks: &[
        Check {
            anchor: "l5d-existence-ns",
            description: "the control plane's namespace exists",
            advice: "meshctl install --crds | kubectl apply -f - && meshctl install | kubectl apply -f -; another namespace is chosen with -L",
            explained_by: &[],
            ends: Ends::Run,
            on: On::Cluster,
            look: |facts| {
                see(&facts.objects.namespaces)?;
                let name = &facts.control_namespace;
                Ok(match facts.namespace(name) {
                    Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => {
                        Outcome::fail(format!("namespace {name} is being deleted"))
                    }
                    Some(_) => Outcome::ok(name),
                    None => Outcome::fail(format!("there is no namespace {name}")),
                })
            },
        },
        super::kubernetes::NODES_READY,
        Check {
            anchor: "l5d-existence-linkerd-config",
            description: "ConfigMap linkerd-config holds the mesh's values",
            advice: "{upgrade}",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: |facts| Ok(Outcome::ok(facts.values()?.linkerd_version)),
        },
        Check {
            anchor: "l5d-existence-sa",
            description: "the control plane's service accounts exist, and their pods' tokens are theirs",
            advice: "{upgrade}",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::accounts,
        },
        Check {
            anchor: "control-plane-deployments",
            description: "the control plane's workloads exist and run as many pods as they should",
            advice: "{upgrade}",
            explained_by: &[&["l5d-existence-ns", "pre-pod-security", "l5d-existence-sa"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: pods::workloads,
        },
        Check {
            anchor: "l5d-existence-unschedulable-pods",
            description: "every pod of the control plane found a node",
            advice: "kubectl -n {ns} describe pods: look at the events; make room, or correct nodeSelector and tolerations",
            explained_by: &[&["nodes-ready"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: pods::unschedulable,
        },
        Check {
            anchor: "control-plane-containers",
            description: "containers of the control plane start and stay up",
            advice: "an image: kubectl -n {ns} describe pod POD; a crash: kubectl -n {ns} logs POD -c CONTAINER --previous",
            explained_by: &[&[
                "nodes-ready",
                "l5d-existence-linkerd-config",
                "l5d-identity-cert-config-valid",
                "controllers-permissions",
            ]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: pods::containers,
        },
        Check {
            anchor: "l5d-api-control-ready",
            description: "control plane pods are ready",
            advice: "kubectl -n {ns} get pods -o wide; on a local node: meshctl local status, meshctl local logs",
            explained_by: &[
                NOT_RUNNING,
                TRUST,
                NOT_WORKING,
                &["l5d-cp-proxy-healthy"],
                AGENTS,
            ],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: pods::ready,
        },
        Check {
            anchor: "control-plane-endpoints",
            description: "the control plane's Services lead to ready pods",
            advice: "{upgrade}",
            explained_by: &[&["l5d-api-control-ready"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::services,
        },
        Check {
            anchor: "controllers-ready",
            description: "controllers have read their objects",
            advice: "kubectl -n {ns} logs deployment/linkerd-destination --all-containers: the log names the object that cannot be read",
            explained_by: &[
                NOT_RUNNING,
                &["l5d-existence-crd", "controllers-permissions"],
                TRUST,
            ],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: pods::controllers_ready,
        },
        Check {
            anchor: "controllers-follow",
            description: "controllers learn of every change",
            advice: "kubectl -n {ns} logs deployment/linkerd-destination --all-containers: the log has the API server's reason; kubectl -n {ns} rollout restart deployment when it is \"Unauthorized\"",
            explained_by: &[&[
                "l5d-existence-sa",
                "l5d-existence-crd",
                "controllers-permissions",
            ]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: pods::controllers_follow,
        },
    ],
};

pub(super) const CONFIG: Category = Category {
    name: "linkerd-config",
    applies: |facts| facts.place == Place::Cluster && facts.is_installed_mode(),
    checks: &[
        Check {
            anchor: "controllers-permissions",
            description: "the controllers may do what they must",
            advice: "{upgrade}: it puts ClusterRoles and bindings right",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::permissions,
        },
        Check {
            anchor: "l5d-cluster-networks-cidr",
            description: "the nodes' pod networks are in clusterNetworks",
            advice: "add the block to the value clusterNetworks, and {upgrade}",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::node_networks,
        },
        Check {
            anchor: "l5d-cluster-networks-pods",
            description: "pods and Services have addresses in clusterNetworks",
            advice: "add the block to the value clusterNetworks, and {upgrade}",
            explained_by: &[&["l5d-cluster-networks-cidr"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::addresses,
        },
        Check {
            anchor: "config-drift",
            description: "the control plane runs with the values that are written down",
            advice: "kubectl -n {ns} rollout restart deployment; if they differ again, upgrade",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::drift,
        },
        Check {
            anchor: "values-without-effect",
            description: "every value that was given has an effect",
            advice: "take the keys out of the values file; docs/reference/values.md says what has the effect that was meant",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: config::without_effect,
        },
    ],
};

pub(super) const PROXY: Category = Category {
    name: "linkerd-control-plane-proxy",
    applies: INSTALLED,
    checks: &[Check {
        anchor: "l5d-cp-proxy-healthy",
        description: "the control plane's own proxies are ready",
        advice: "kubectl -n {ns} logs POD -c linkerd-proxy",
        explained_by: &[
            NOT_RUNNING,
            TRUST,
            &["controllers-permissions", "token-audience"],
            AGENTS,
        ],
        ends: Ends::Nothing,
        on: On::Anywhere,
        look: pods::proxies,
    }],
};

pub(super) const HA: Category = Category {
    name: "linkerd-ha-checks",
    applies: |facts| {
        facts.place == Place::Cluster
            && facts.is_installed_mode()
            && facts.values().is_ok_and(|values| values.high_availability)
    },
    checks: &[Check {
        anchor: "l5d-control-plane-replicas",
        description: "every part of the control plane runs more than once",
        advice: "set the value controllerReplicas to 3, and {upgrade}",
        explained_by: &[&["control-plane-deployments"]],
        ends: Ends::Nothing,
        on: On::Cluster,
        look: pods::replicas,
    }],
};
