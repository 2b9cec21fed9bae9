//! The API server: reachability, version, served kinds and clock skew.

use mesh_k8s::kinds::ResourceExt;

use super::framework::{Category, Check, CheckResult, Finding, OnFailure, Outcome};
use crate::facts::{Environment, Fact, Facts, Mode, fact_ref};
use crate::output::count;

const ON_CLUSTER: fn(&Facts) -> bool = |facts| facts.environment == Environment::Cluster;

pub(super) const API: Category = Category {
    name: "kubernetes-api",
    applies: ON_CLUSTER,
    checks: &[
        Check::new(
            "k8s-api",
            "the Kubernetes API is reachable",
            "kubectl cluster-info; select another cluster with --context or --kubeconfig",
            |facts| Ok(Outcome::ok(&fact_ref(&facts.api_server)?.version)),
        )
        .on_failure(OnFailure::Abort),
        Check::new(
            "pre-k8s-clock-skew",
            "the clocks of this machine, the API server and the nodes agree",
            "on the machine whose clock is off: timedatectl set-ntp true",
            clock_skew,
        ),
    ],
};

/// Checked before and after the installation.
pub(super) const NODES_READY: Check = Check::new(
    "nodes-ready",
    "nodes are Ready",
    "kubectl describe nodes",
    nodes_ready,
);

/// Oldest version with EndpointSlices, native sidecars and CEL validation; Linkerd requires it,
/// too.
const MIN_VERSION: (u32, u32) = (1, 31);

pub(super) const VERSION: Category = Category {
    name: "kubernetes-version",
    applies: ON_CLUSTER,
    checks: &[Check::new(
        "k8s-version",
        "the cluster runs a supported version of Kubernetes",
        "upgrade the cluster to Kubernetes 1.31 or newer",
        |facts| {
            let server = fact_ref(&facts.api_server)?;
            Ok(match server.major_minor {
                Some(version) if version >= MIN_VERSION => Outcome::ok(""),
                _ => Outcome::fail(format!(
                    "the API server is {}, the mesh needs {}.{} or newer",
                    server.version, MIN_VERSION.0, MIN_VERSION.1
                )),
            })
        },
    )],
};

pub(super) const GATEWAY_API: Category = Category {
    name: "gateway-api-crd",
    applies: |facts| (ON_CLUSTER)(facts) && !matches!(facts.mode, Mode::Viz { .. }),
    checks: &[Check::new(
        "gateway-api-crd",
        "HTTPRoute and GRPCRoute of the Gateway API are served",
        "install the standard channel of the Gateway API; the controllers detect it without a restart",
        |facts| {
            let missing = missing(facts, &GATEWAY_KINDS)?.into_iter();
            let wrong = missing
                .map(|kind| format!("{kind} is not served: routes of that kind cannot be used"));
            Ok(Outcome::warn_if(wrong, ""))
        },
    )],
};

const GATEWAY_KINDS: [&str; 2] = [
    "gateway.networking.k8s.io/v1/HTTPRoute",
    "gateway.networking.k8s.io/v1/GRPCRoute",
];

pub(super) const CRD: Category = Category {
    name: "linkerd-crd",
    applies: |facts| {
        facts.environment == Environment::Cluster
            && !matches!(facts.mode, Mode::Pre | Mode::Viz { .. })
    },
    checks: &[Check::new(
        "l5d-existence-crd",
        "the custom resources of the mesh are served",
        "meshctl install --crds | kubectl apply -f -",
        |facts| {
            let missing = missing(facts, &KINDS)?;
            if missing.len() == KINDS.len() {
                return Ok(Outcome::fail(
                    "the API server serves none of the mesh's kinds",
                ));
            }
            let wrong = missing
                .into_iter()
                .map(|kind| format!("{kind} is not served"));
            Ok(Outcome::fail_if(wrong, format!("{} kinds", KINDS.len())))
        },
    )
    .explained_by(&[&["l5d-existence-ns"]])],
};

/// The kinds of chart linkerd-crds, in the versions that the mesh uses.
const KINDS: [&str; 10] = [
    "policy.linkerd.io/v1beta3/Server",
    "policy.linkerd.io/v1alpha1/AuthorizationPolicy",
    "policy.linkerd.io/v1alpha1/MeshTLSAuthentication",
    "policy.linkerd.io/v1alpha1/NetworkAuthentication",
    "policy.linkerd.io/v1beta3/HTTPRoute",
    "policy.linkerd.io/v1beta1/ServerAuthorization",
    "policy.linkerd.io/v1alpha1/HTTPLocalRateLimitPolicy",
    "policy.linkerd.io/v1alpha1/EgressNetwork",
    "linkerd.io/v1alpha2/ServiceProfile",
    "workload.linkerd.io/v1beta1/ExternalWorkload",
];

/// Returns all kinds that checks require.
#[cfg(test)]
pub(super) fn required_kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().chain(GATEWAY_KINDS)
}

fn missing(facts: &Facts, kinds: &[&'static str]) -> Fact<Vec<&'static str>> {
    let served = fact_ref(&fact_ref(&facts.api_server)?.served)?;
    let absent = kinds.iter().filter(|kind| !served.contains(**kind));
    Ok(absent.copied().collect())
}

/// Proxies reject each other's certificates at a larger difference: a certificate is valid from 20
/// seconds before it was issued (identity.issuer.clockSkewAllowance).
pub(super) const MAX_SKEW_SECONDS: u64 = 20;
/// Nodes renew their lease every 10 seconds. A few missed renewals do not indicate clock skew.
const MAX_LEASE_AGE_SECONDS: u64 = 60;

fn clock_skew(facts: &Facts) -> CheckResult {
    let server = fact_ref(&facts.api_server)?;
    let Some(clock) = server.clock else {
        return Ok(Outcome::ok("the API server sends no Date header"));
    };
    let mut wrong = Vec::new();
    if clock.abs_diff(facts.now) > MAX_SKEW_SECONDS {
        wrong.push(format!(
            "the API server's clock is {} s {} this machine's",
            clock.abs_diff(facts.now),
            if clock > facts.now {
                "ahead of"
            } else {
                "behind"
            }
        ));
    }
    let leases = facts.objects.leases.as_deref().unwrap_or_default();
    for lease in leases {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let Some(renewed) = renewed.and_then(|time| u64::try_from(time.0.as_second()).ok()) else {
            continue;
        };
        let name = lease.name_any();
        if renewed > clock + MAX_SKEW_SECONDS {
            wrong.push(format!(
                "node {name}: its clock is {} s ahead of the API server's",
                renewed - clock
            ));
        } else if renewed + MAX_LEASE_AGE_SECONDS < clock && is_ready(facts, &name) {
            wrong.push(format!(
                "node {name}: its heartbeat is {} s old although it is Ready: its clock is behind, or its kubelet hangs",
                clock - renewed
            ));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn nodes_ready(facts: &Facts) -> CheckResult {
    let nodes = fact_ref(&facts.objects.nodes)?;
    let wrong = nodes.iter().filter_map(|node| {
        let (name, reason) = (node.name_any(), facts.unready_reason(node)?);
        let pods = facts.objects.pods.as_deref().unwrap_or_default();
        let here = pods.iter().filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name.as_str())
                && crate::facts::proxy_container(pod).is_some()
        });
        let finding = Finding::new(format!(
            "node {name} is not Ready ({}): the state of the {} there is unknown",
            reason.trim(),
            count(here.count(), "meshed pod", "meshed pods")
        ));
        Some(finding.with_fix(format!(
            "kubectl describe node {name}; on it: journalctl -u kubelet"
        )))
    });
    Ok(Outcome::warn_if(wrong, count(nodes.len(), "node", "nodes")))
}

fn is_ready(facts: &Facts, node: &str) -> bool {
    let nodes = facts.objects.nodes.as_deref().unwrap_or_default();
    let node = nodes.iter().find(|one| one.name_any() == node);
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}
