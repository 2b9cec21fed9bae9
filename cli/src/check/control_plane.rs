//! The control plane: its objects, pods and proxies, and whether they match the chart's values.

mod claims;
mod config;
mod heartbeat;
pub(super) mod pods;

pub(super) use pods::{container_problem_of, container_problems, is_agent};

use super::causes::{AGENTS, NOT_RUNNING, NOT_WORKING, TRUST};
use super::framework::{AppliesTo, Category, Check, OnFailure, Outcome};
use crate::facts::{Environment, Facts, fact_ref};

const INSTALLED: fn(&Facts) -> bool =
    |facts| facts.environment != Environment::Machine && facts.is_installed_mode();

pub(super) const EXISTENCE: Category = Category {
    name: "linkerd-existence",
    applies: INSTALLED,
    checks: &[
        Check::new(
            "l5d-existence-ns",
            "the control plane's namespace exists",
            "meshctl install --crds | kubectl apply -f - && meshctl install | kubectl apply -f -; select another namespace with -L",
            |facts| {
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
        )
        .on_failure(OnFailure::Abort),
        super::kubernetes::NODES_READY,
        super::system::CONTROLLERS_RUN,
        super::system::DNS,
        Check::new(
            "l5d-existence-linkerd-config",
            "ConfigMap linkerd-config has valid values",
            "{upgrade}",
            |facts| Ok(Outcome::ok(&facts.values()?.linkerd_version)),
        ),
        Check::new(
            "l5d-existence-sa",
            "the control plane's service accounts exist, and its pods have their tokens",
            "{upgrade}",
            config::accounts,
        ),
        Check::new(
            "control-plane-deployments",
            "the control plane's workloads exist and have all their pods",
            "{upgrade}",
            pods::workloads,
        )
        .explained_by(&[&["l5d-existence-ns", "pre-pod-security", "l5d-existence-sa"]]),
        Check::new(
            "l5d-existence-unschedulable-pods",
            "all control plane pods are scheduled",
            "kubectl -n {ns} describe pods: see the events; free resources, or correct nodeSelector and tolerations",
            pods::unschedulable,
        )
        .explained_by(&[&["nodes-ready"]]),
        Check::new(
            "control-plane-containers",
            "control plane containers start and do not crash",
            "an image: kubectl -n {ns} describe pod POD; a crash: kubectl -n {ns} logs POD -c CONTAINER --previous",
            pods::containers,
        )
        .explained_by(&[&[
            "nodes-ready",
            "l5d-existence-linkerd-config",
            "l5d-identity-cert-config-valid",
            "controllers-permissions",
        ]]),
        Check::new(
            "l5d-api-control-ready",
            "control plane pods are ready",
            "kubectl -n {ns} get pods -o wide; on a local node: meshctl local status, meshctl local logs",
            pods::ready,
        )
        .explained_by(&[
            NOT_RUNNING,
            TRUST,
            NOT_WORKING,
            &["l5d-cp-proxy-healthy"],
            AGENTS,
        ])
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "control-plane-endpoints",
            "the control plane's Services have ready endpoints",
            "{upgrade}",
            config::services,
        )
        .explained_by(&[&["l5d-api-control-ready"]]),
        Check::new(
            "controllers-ready",
            "controllers have read their objects",
            "kubectl -n {ns} logs deployment/linkerd-destination --all-containers: the log names the invalid object",
            pods::controllers_ready,
        )
        .explained_by(&[
            NOT_RUNNING,
            &["l5d-existence-crd", "controllers-permissions"],
            TRUST,
        ])
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "controllers-follow",
            "controllers receive all changes",
            "kubectl -n {ns} logs deployment/linkerd-destination --all-containers: the log has the API server's error; kubectl -n {ns} rollout restart deployment when it is \"Unauthorized\"",
            pods::controllers_follow,
        )
        .explained_by(&[&[
            "l5d-existence-sa",
            "l5d-existence-crd",
            "controllers-permissions",
        ]]),
    ],
};

pub(super) const CONFIG: Category = Category {
    name: "linkerd-config",
    applies: |facts| facts.environment == Environment::Cluster && facts.is_installed_mode(),
    checks: &[
        Check::new(
            "controllers-permissions",
            "the controllers have the permissions that they need",
            "{upgrade}: it restores ClusterRoles and bindings",
            config::permissions,
        ),
        Check::new(
            "l5d-cluster-networks-cidr",
            "the nodes' pod networks are in clusterNetworks",
            "add the block to the value clusterNetworks, and {upgrade}",
            config::node_networks,
        ),
        Check::new(
            "l5d-cluster-networks-pods",
            "pods and Services have addresses in clusterNetworks",
            "add the block to the value clusterNetworks, and {upgrade}",
            config::addresses,
        )
        .explained_by(&[&["l5d-cluster-networks-cidr"]]),
        super::system::DOMAIN,
        super::network_policies::ADMIT,
        Check::new(
            "config-drift",
            "the control plane runs with the configured values",
            "kubectl -n {ns} rollout restart deployment; if they differ again, upgrade",
            config::drift,
        ),
        Check::new(
            "control-plane-pod-security",
            "the control plane's namespace enforces the Pod Security level of its pods",
            "kubectl label namespace {ns} --overwrite pod-security.kubernetes.io/enforce=LEVEL",
            config::pod_security,
        ),
        Check::new(
            "values-without-effect",
            "all configured values have an effect",
            "remove the keys from the values file; docs/reference/values.md has the supported values",
            config::without_effect,
        ),
        Check::new(
            "status-writer",
            "a replica writes the statuses of routes",
            "kubectl -n {ns} logs deployment/linkerd-destination -c policy",
            claims::status_writer,
        )
        .explained_by(&[NOT_RUNNING, NOT_WORKING]),
        Check::new(
            "endpoint-writer",
            "a replica writes the EndpointSlices of ExternalWorkloads",
            "kubectl -n {ns} logs deployment/linkerd-destination -c destination",
            claims::endpoint_writer,
        )
        .explained_by(&[NOT_RUNNING, NOT_WORKING]),
        Check::new(
            "extension-namespaces",
            "each extension has one namespace",
            "kubectl get namespaces -L linkerd.io/extension",
            claims::extensions,
        ),
        Check::new(
            "heartbeat-cron-job",
            "reports of the installation are sent as the values say",
            "{upgrade}; `meshctl diagnostics heartbeat` shows what is sent, and where to",
            heartbeat::cron_job,
        )
        .explained_by(&[&["l5d-existence-sa"]]),
    ],
};

pub(super) const PROXY: Category = Category {
    name: "linkerd-control-plane-proxy",
    applies: INSTALLED,
    checks: &[Check::new(
        "l5d-cp-proxy-healthy",
        "the control plane's proxies are ready",
        "kubectl -n {ns} logs POD -c linkerd-proxy",
        pods::proxies,
    )
    .explained_by(&[
        NOT_RUNNING,
        TRUST,
        &["controllers-permissions", "token-audience"],
        AGENTS,
    ])
    .applies_to(AppliesTo::Everywhere)],
};

pub(super) const HA: Category = Category {
    name: "linkerd-ha-checks",
    applies: |facts| {
        facts.environment == Environment::Cluster
            && facts.is_installed_mode()
            && facts.values().is_ok_and(|values| values.high_availability)
    },
    checks: &[Check::new(
        "l5d-control-plane-replicas",
        "all control plane components have several replicas",
        "set the value controllerReplicas to 3, and {upgrade}",
        pods::replicas,
    )
    .explained_by(&[&["control-plane-deployments"]])],
};
