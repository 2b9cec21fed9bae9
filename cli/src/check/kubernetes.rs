//! The API server: does it answer, is it new enough, what does it serve, and do the clocks agree.

use mesh_k8s::kinds::ResourceExt;

use super::{
    Category, Check, Ends, Facts, Line, Mode, On, Outcome, Place, Verdict, count,
    facts::{Seen, see},
};

const ON_CLUSTER: fn(&Facts) -> bool = |facts| facts.place == Place::Cluster;

pub(super) const API: Category = Category {
    name: "kubernetes-api",
    applies: ON_CLUSTER,
    checks: &[
        Check {
            anchor: "k8s-api",
            description: "the Kubernetes API answers",
            advice: "kubectl cluster-info; choose another cluster with --context or --kubeconfig",
            explained_by: &[],
            ends: Ends::Run,
            on: On::Cluster,
            look: |facts| Ok(Outcome::ok(&see(&facts.server)?.version)),
        },
        Check {
            anchor: "pre-k8s-clock-skew",
            description: "the clocks of this machine, the API server and the nodes agree",
            advice: "on the machine whose clock is off: timedatectl set-ntp true",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: clock_skew,
        },
    ],
};

/// Before the mesh is installed, and afterwards.
pub(super) const NODES_READY: Check = Check {
    anchor: "nodes-ready",
    description: "nodes are Ready",
    advice: "kubectl describe nodes",
    explained_by: &[],
    ends: Ends::Nothing,
    on: On::Cluster,
    look: nodes_ready,
};

/// What EndpointSlices, native sidecars and CEL validation need, and Linkerd asks for too.
const OLDEST: (u32, u32) = (1, 31);

pub(super) const VERSION: Category = Category {
    name: "kubernetes-version",
    applies: ON_CLUSTER,
    checks: &[Check {
        anchor: "k8s-version",
        description: "the cluster runs a supported version of Kubernetes",
        advice: "upgrade the cluster to Kubernetes 1.31 or newer",
        explained_by: &[],
        ends: Ends::Nothing,
        on: On::Cluster,
        look: |facts| {
            let server = see(&facts.server)?;
            Ok(match server.major_minor {
                Some(version) if version >= OLDEST => Outcome::ok(""),
                _ => Outcome::fail(format!(
                    "the API server is {}, the mesh needs {}.{} or newer",
                    server.version, OLDEST.0, OLDEST.1
                )),
            })
        },
    }],
};

pub(super) const GATEWAY_API: Category = Category {
    name: "gateway-api-crd",
    applies: ON_CLUSTER,
    checks: &[Check {
        anchor: "gateway-api-crd",
        description: "HTTPRoute and GRPCRoute of the Gateway API are served",
        advice: "install the Gateway API's standard channel, then look again; the controllers notice it by themselves",
        explained_by: &[],
        ends: Ends::Nothing,
        on: On::Cluster,
        look: |facts| {
            let missing = missing(facts, &GATEWAY_KINDS)?;
            Ok(Outcome::warn_if(
                missing
                    .into_iter()
                    .map(|kind| format!("{kind} is not served: routes of that kind cannot be used"))
                    .collect(),
                "",
            ))
        },
    }],
};

const GATEWAY_KINDS: [&str; 2] = [
    "gateway.networking.k8s.io/v1/HTTPRoute",
    "gateway.networking.k8s.io/v1/GRPCRoute",
];

pub(super) const CRD: Category = Category {
    name: "linkerd-crd",
    applies: |facts| facts.place == Place::Cluster && facts.mode != Mode::Pre,
    checks: &[Check {
        anchor: "l5d-existence-crd",
        description: "the custom resources of the mesh are served",
        advice: "meshctl install --crds | kubectl apply -f -",
        explained_by: &[&["l5d-existence-ns"]],
        ends: Ends::Nothing,
        on: On::Cluster,
        look: |facts| {
            let missing = missing(facts, &KINDS)?;
            if missing.len() == KINDS.len() {
                return Ok(Outcome::fail("none of the mesh's kinds is served"));
            }
            let wrong = missing
                .into_iter()
                .map(|kind| format!("{kind} is not served"));
            Ok(Outcome::fail_if(
                wrong.collect(),
                format!("{} kinds", KINDS.len()),
            ))
        },
    }],
};

/// What the chart linkerd-crds brings, in the version that is stored or asked for.
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

/// Every kind that a check asks for.
#[cfg(test)]
pub(super) fn every_kind() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().chain(GATEWAY_KINDS)
}

fn missing(facts: &Facts, kinds: &[&'static str]) -> Seen<Vec<&'static str>> {
    let served = see(&see(&facts.server)?.served)?;
    let absent = kinds.iter().filter(|kind| !served.contains(**kind));
    Ok(absent.copied().collect())
}

/// A proxy's certificate is valid from 20 seconds before it was issued
/// (identity.issuer.clockSkewAllowance): a larger difference makes proxies refuse each other.
const SKEW: u64 = 20;
/// Nodes renew their lease every 10 seconds; one whose renewal was missed a few times is late
/// rather than wrong.
const LEASE_LATE: u64 = 60;

fn clock_skew(facts: &Facts) -> Verdict {
    let server = see(&facts.server)?;
    let Some(clock) = server.clock else {
        return Ok(Outcome::ok("the API server does not tell its time"));
    };
    let mut wrong = Vec::new();
    if clock.abs_diff(facts.now) > SKEW {
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
        if renewed > clock + SKEW {
            wrong.push(format!(
                "node {name}: its clock is {} s ahead of the API server's",
                renewed - clock
            ));
        } else if renewed + LEASE_LATE < clock && is_ready(facts, &name) {
            wrong.push(format!(
                "node {name}: its heartbeat is {} s old though it is Ready: its clock is behind, or it hangs",
                clock - renewed
            ));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn nodes_ready(facts: &Facts) -> Verdict {
    let nodes = see(&facts.objects.nodes)?;
    let wrong = nodes.iter().filter_map(|node| {
        let (name, reason) = (node.name_any(), facts.node_trouble(node)?);
        let pods = facts.objects.pods.as_deref().unwrap_or_default();
        let here = pods.iter().filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name.as_str())
                && super::facts::proxy_container(pod).is_some()
        });
        let line = Line::new(format!(
            "node {name} is not Ready ({}): the mesh cannot be asked about the {} there",
            reason.trim(),
            count(here.count(), "meshed pod", "meshed pods")
        ));
        Some(line.fixed_by(format!(
            "kubectl describe node {name}; on it: journalctl -u kubelet"
        )))
    });
    Ok(Outcome::warn_if(
        wrong.collect(),
        count(nodes.len(), "node", "nodes"),
    ))
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
