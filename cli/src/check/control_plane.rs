//! The control plane: its objects, pods and proxies, and whether they match the chart's values.

mod config;
mod pods;

pub(super) use pods::{
    COMPONENTS, can_respond, container_problem_of, container_problems, is_agent,
};

use super::causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST};
use super::facts::fact_ref;
use super::{AppliesTo, Category, Check, Environment, Facts, OnFailure, Outcome};

const INSTALLED: fn(&Facts) -> bool =
    |facts| facts.environment != Environment::Machine && facts.is_installed_mode();

pub(super) const EXISTENCE: Category = Category {
    name: "linkerd-existence",
    applies: INSTALLED,
    checks: &[
        Check {
            id: "l5d-existence-ns",
            description: "the control plane's namespace exists",
            advice: "meshctl install --crds | kubectl apply -f - && meshctl install | kubectl apply -f -; select another namespace with -L",
            explained_by: &[],
            on_failure: OnFailure::Abort,
            applies_to: AppliesTo::Cluster,
            run: |facts| {
                fact_ref(&facts.objects.namespaces)?;
                let name = &facts.control_namespace;
                Ok(match facts.namespace(name) {
                    Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => {
                        Outcome::fail(format!("namespace {name} is being deleted"))
                    }
                    Some(_) => Outcome::ok(name),
                    None => Outcome::fail(format!("namespace {name} does not exist")),
                })
            },
        },
        super::kubernetes::NODES_READY,
        Check {
            id: "l5d-existence-linkerd-config",
            description: "ConfigMap linkerd-config has valid values",
            advice: "{upgrade}",
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: |facts| Ok(Outcome::ok(facts.values()?.linkerd_version)),
        },
        Check {
            id: "l5d-existence-sa",
            description: "the control plane's service accounts exist, and its pods have their tokens",
            advice: "{upgrade}",
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::accounts,
        },
        Check {
            id: "control-plane-deployments",
            description: "the control plane's workloads exist and have all their pods",
            advice: "{upgrade}",
            explained_by: &[&["l5d-existence-ns", "pre-pod-security", "l5d-existence-sa"]],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: pods::workloads,
        },
        Check {
            id: "l5d-existence-unschedulable-pods",
            description: "all control plane pods are scheduled",
            advice: "kubectl -n {ns} describe pods: see the events; free resources, or correct nodeSelector and tolerations",
            explained_by: &[&["nodes-ready"]],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: pods::unschedulable,
        },
        Check {
            id: "control-plane-containers",
            description: "control plane containers start and do not crash",
            advice: "an image: kubectl -n {ns} describe pod POD; a crash: kubectl -n {ns} logs POD -c CONTAINER --previous",
            explained_by: &[&[
                "nodes-ready",
                "l5d-existence-linkerd-config",
                "l5d-identity-cert-config-valid",
                "controllers-permissions",
            ]],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: pods::containers,
        },
        Check {
            id: "l5d-api-control-ready",
            description: "control plane pods are ready",
            advice: "kubectl -n {ns} get pods -o wide; on a local node: meshctl local status, meshctl local logs",
            explained_by: &[
                NOT_RUNNING,
                TRUST,
                NOT_WORKING,
                &["l5d-cp-proxy-healthy"],
                AGENTS,
            ],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Everywhere,
            run: pods::ready,
        },
        Check {
            id: "control-plane-endpoints",
            description: "the control plane's Services have ready endpoints",
            advice: "{upgrade}",
            explained_by: &[&["l5d-api-control-ready"]],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::services,
        },
        Check {
            id: "controllers-ready",
            description: "controllers have read their objects",
            advice: "kubectl -n {ns} logs deployment/linkerd-destination --all-containers: the log names the invalid object",
            explained_by: &[
                NOT_RUNNING,
                &["l5d-existence-crd", "controllers-permissions"],
                TRUST,
            ],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Everywhere,
            run: pods::controllers_ready,
        },
        Check {
            id: "controllers-follow",
            description: "controllers receive all changes",
            advice: "kubectl -n {ns} logs deployment/linkerd-destination --all-containers: the log has the API server's error; kubectl -n {ns} rollout restart deployment when it is \"Unauthorized\"",
            explained_by: &[&[
                "l5d-existence-sa",
                "l5d-existence-crd",
                "controllers-permissions",
            ]],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: pods::controllers_follow,
        },
    ],
};

pub(super) const CONFIG: Category = Category {
    name: "linkerd-config",
    applies: |facts| facts.environment == Environment::Cluster && facts.is_installed_mode(),
    checks: &[
        Check {
            id: "controllers-permissions",
            description: "the controllers have the permissions that they need",
            advice: "{upgrade}: it restores ClusterRoles and bindings",
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::permissions,
        },
        Check {
            id: "l5d-cluster-networks-cidr",
            description: "the nodes' pod networks are in clusterNetworks",
            advice: "add the block to the value clusterNetworks, and {upgrade}",
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::node_networks,
        },
        Check {
            id: "l5d-cluster-networks-pods",
            description: "pods and Services have addresses in clusterNetworks",
            advice: "add the block to the value clusterNetworks, and {upgrade}",
            explained_by: &[&["l5d-cluster-networks-cidr"]],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::addresses,
        },
        Check {
            id: "config-drift",
            description: "the control plane runs with the configured values",
            advice: "kubectl -n {ns} rollout restart deployment; if they differ again, upgrade",
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::drift,
        },
        Check {
            id: "values-without-effect",
            description: "all configured values have an effect",
            advice: "remove the keys from the values file; docs/reference/values.md has the supported values",
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run: config::without_effect,
        },
    ],
};

pub(super) const PROXY: Category = Category {
    name: "linkerd-control-plane-proxy",
    applies: INSTALLED,
    checks: &[Check {
        id: "l5d-cp-proxy-healthy",
        description: "the control plane's proxies are ready",
        advice: "kubectl -n {ns} logs POD -c linkerd-proxy",
        explained_by: &[
            NOT_RUNNING,
            TRUST,
            &["controllers-permissions", "token-audience"],
            AGENTS,
        ],
        on_failure: OnFailure::Continue,
        applies_to: AppliesTo::Everywhere,
        run: pods::proxies,
    }],
};

pub(super) const HA: Category = Category {
    name: "linkerd-ha-checks",
    applies: |facts| {
        facts.environment == Environment::Cluster
            && facts.is_installed_mode()
            && facts.values().is_ok_and(|values| values.high_availability)
    },
    checks: &[Check {
        id: "l5d-control-plane-replicas",
        description: "all control plane components have several replicas",
        advice: "set the value controllerReplicas to 3, and {upgrade}",
        explained_by: &[&["control-plane-deployments"]],
        on_failure: OnFailure::Continue,
        applies_to: AppliesTo::Cluster,
        run: pods::replicas,
    }],
};
