//! The planted faults, and the rows that name them.

use mesh_test_support::certificates::TestCa;
use serde_json::{Value, json};

use super::world::{
    BUNDLE, CONFIG, CONTROLLER, CREDENTIALS, DISCOVERY, GATEWAY, LEASE, LINK, MIRROR,
    MIRROR_ENDPOINTS, PROBE, PROBE_ENDPOINTS, RECORD, ROOTS, World, kubeconfig, link,
};

/// A fault of a link or a gateway.
pub(super) struct Fault {
    pub(super) plant: fn(&mut World),
    /// The row that is its root cause.
    pub(super) row: &'static str,
    pub(super) result: &'static str,
    /// What the row names: the object, and the field or the reason.
    pub(super) names: &'static [&'static str],
    /// A part of the advice.
    pub(super) advice: &'static str,
    /// Nothing listens where the target is.
    pub(super) is_unreachable: bool,
}

const fn fails(
    row: &'static str,
    names: &'static [&'static str],
    advice: &'static str,
    plant: fn(&mut World),
) -> Fault {
    Fault {
        plant,
        row,
        result: "error",
        names,
        advice,
        is_unreachable: false,
    }
}

const fn warns(
    row: &'static str,
    names: &'static [&'static str],
    advice: &'static str,
    plant: fn(&mut World),
) -> Fault {
    Fault {
        result: "warning",
        ..fails(row, names, advice, plant)
    }
}

const ACCESS: &str = "l5d-smc-target-clusters-access";
const MATCH: &str = "multicluster-targets-match";
const GATEWAYS: &str = "multicluster-gateways-match";
const DOMAINS: &str = "multicluster-trust-domains";
const BUNDLES: &str = "multicluster-trust-bundles";
const ANCHORS: &str = "l5d-multicluster-clusters-share-anchors";
const RUNNING: &str = "l5d-multicluster-service-mirror-running";
const LINK_AGAIN: &str = "multicluster link-gen --cluster-name east";

fn text(value: &str) -> Value {
    Value::from(value)
}

/// Has the trust bundle of cluster east be one of another trust domain.
fn name_domain(world: &mut World, domain: &str) {
    world.exchange_bundles();
    let data = &mut world.own.edit(BUNDLE)["data"];
    data["trust-domain"] = text(domain);
    data["endpoint-spiffe-id"] = Value::from(format!("spiffe://{domain}/a"));
}

pub(super) const FAULTS: &[Fault] = &[
    // Credentials.
    fails(
        ACCESS,
        &["Secret linkerd-multicluster/cluster-credentials-east does not exist"],
        LINK_AGAIN,
        |world| world.own.remove(CREDENTIALS),
    ),
    fails(
        ACCESS,
        &["Secret linkerd-multicluster/credentials-of-east does not exist"],
        LINK_AGAIN,
        |world| {
            world.own.edit(LINK)["spec"]["clusterCredentialsSecret"] = text("credentials-of-east");
        },
    ),
    fails(
        ACCESS,
        &[
            "Secret linkerd/cluster-credentials-east",
            "is not of type mirror.linkerd.io/remote-kubeconfig",
        ],
        "kubectl -n linkerd delete secret cluster-credentials-east",
        |world| world.own.edit(DISCOVERY)["type"] = text("Opaque"),
    ),
    fails(
        ACCESS,
        &[
            "namespace linkerd has no Secret",
            "multicluster.linkerd.io/cluster-name=east",
        ],
        LINK_AGAIN,
        |world| world.own.remove(DISCOVERY),
    ),
    fails(
        ACCESS,
        &[
            "Secret linkerd-multicluster/cluster-credentials-east",
            "has no key kubeconfig",
        ],
        LINK_AGAIN,
        |world| world.own.edit(CREDENTIALS)["data"] = json!({}),
    ),
    fails(
        ACCESS,
        &[
            "Secret linkerd-multicluster/cluster-credentials-east",
            "kubeconfig",
        ],
        LINK_AGAIN,
        |world| world.set_kubeconfig("clusters: 1"),
    ),
    fails(
        ACCESS,
        &["exec of user", "is not supported in a link"],
        LINK_AGAIN,
        |world| world.set_kubeconfig("{users: [{name: m, user: {exec: {command: /bin/sh}}}]}"),
    ),
    Fault {
        is_unreachable: true,
        ..fails(
            ACCESS,
            &["cluster east: cannot reach its API server http://127.0.0.1:"],
            LINK_AGAIN,
            |_| (),
        )
    },
    fails(
        ACCESS,
        &[
            "cluster east: its API server http://127.0.0.1:",
            "refuses the credentials (401)",
        ],
        LINK_AGAIN,
        |world| {
            let kubeconfig = kubeconfig(world.address, "revoked");
            world.set_kubeconfig(&kubeconfig);
        },
    ),
    fails(
        ACCESS,
        &["cluster east: the credentials may not watch endpointslices.discovery.k8s.io"],
        "multicluster allow --ignore-cluster",
        |world| world.east.denied = vec!["watch endpointslices"],
    ),
    fails(
        ACCESS,
        &["cluster east: the credentials may not list replicasets.apps"],
        "multicluster allow --ignore-cluster",
        |world| world.east.denied = vec!["list replicasets"],
    ),
    // The cluster that is reached.
    fails(
        MATCH,
        &[
            "Secret linkerd-multicluster/cluster-credentials-east",
            "is of this cluster, not of east",
        ],
        LINK_AGAIN,
        |world| world.east.edit(CONFIG)["metadata"]["uid"] = text("own"),
    ),
    fails(
        MATCH,
        &[
            "Link linkerd-multicluster/east: spec.targetClusterDomain is west.example",
            "has the domain east.example",
        ],
        LINK_AGAIN,
        |world| world.own.edit(LINK)["spec"]["targetClusterDomain"] = text("west.example"),
    ),
    fails(
        MATCH,
        &[
            "Secret linkerd/cluster-credentials-east: annotation multicluster.linkerd.io/trust-domain is west.example",
            "has east.example",
        ],
        LINK_AGAIN,
        |world| {
            let annotations = &mut world.own.edit(DISCOVERY)["metadata"]["annotations"];
            annotations["multicluster.linkerd.io/trust-domain"] = text("west.example");
        },
    ),
    warns(
        "multicluster-clocks",
        &["the clock of cluster east", "ahead of this cluster's"],
        "synchronise the clocks",
        |world| world.east.clock_ahead = 120,
    ),
    fails(
        ANCHORS,
        &["cluster east has no trust anchor of this cluster"],
        "linkerd-identity-trust-roots",
        |world| {
            let other = TestCa::new();
            world.east.edit(ROOTS)["data"]["ca-bundle.crt"] = text(other.anchor_pem());
        },
    ),
    fails(
        ANCHORS,
        &["cluster east has no trust anchor of this cluster"],
        "both clusters have the trust domain own.example",
        |world| {
            let values = json!({
                "clusterDomain": "east.example", "identityTrustDomain": "own.example",
            });
            world.east.edit(CONFIG)["data"]["values"] = Value::from(values.to_string());
            let other = TestCa::new();
            world.east.edit(ROOTS)["data"]["ca-bundle.crt"] = text(other.anchor_pem());
        },
    ),
    // Trust bundles.
    warns(
        ANCHORS,
        &[
            "cluster east",
            "its anchors trusted for names of east.example only",
        ],
        "nothing, as long as the proxies on both sides are of this project",
        World::exchange_bundles,
    ),
    fails(
        DOMAINS,
        &["ConfigMap linkerd-trust-bundle-east: data[refresh]: is not known"],
        "multicluster trust-gen --cluster-name NAME",
        |world| {
            world.exchange_bundles();
            world.own.edit(BUNDLE)["data"]["refresh"] = text("5s");
        },
    ),
    fails(
        DOMAINS,
        &[
            "ConfigMap linkerd-trust-bundle-east",
            "own.example is the one of this cluster",
        ],
        "kubectl -n linkerd delete configmap linkerd-trust-bundle-east",
        |world| name_domain(world, "own.example"),
    ),
    fails(
        DOMAINS,
        &[
            "ConfigMap linkerd-trust-bundle-east",
            "a.own.example and own.example overlap",
        ],
        "another value of identityTrustDomain",
        |world| name_domain(world, "a.own.example"),
    ),
    fails(
        DOMAINS,
        &[
            "ConfigMap linkerd-trust-bundle-east: data[trust-domain] is x.example",
            "cluster east has the trust domain east.example",
        ],
        "link-gen --cluster-name east --trust-bundle",
        |world| name_domain(world, "x.example"),
    ),
    warns(
        DOMAINS,
        &[
            "ConfigMap linkerd-trust-bundle-east",
            "Link linkerd-multicluster/west does not exist",
        ],
        "kubectl -n linkerd delete configmap linkerd-trust-bundle-east",
        |world| {
            world.exchange_bundles();
            world.own.edit(BUNDLE)["data"]["link"] = text("linkerd-multicluster/west");
            world.own.edit(RECORD)["data"]["foreign"] = text("{}");
        },
    ),
    fails(
        DOMAINS,
        &["does not send the anchors of trust domain east.example"],
        "kubectl -n linkerd logs deploy/linkerd-identity",
        |world| {
            world.exchange_bundles();
            world.own.edit(RECORD)["data"]["foreign"] = text("{}");
        },
    ),
    fails(
        BUNDLES,
        &["cluster east: there is no trust anchor of east.example"],
        "multicluster trust-gen",
        |world| {
            world.exchange_bundles();
            world.record("");
        },
    ),
    warns(
        BUNDLES,
        &[
            "pod linkerd-identity-0 cannot fetch the trust bundle of east.example",
            "https://192.0.2.1:8443/",
        ],
        "kubectl -n linkerd logs linkerd-identity-0 -c identity",
        |world| {
            world.exchange_bundles();
            world.set_bundle_metrics(1);
        },
    ),
    warns(
        BUNDLES,
        &["cluster east trusts", "which the trust bundle in use lacks"],
        "link-gen --cluster-name east --trust-bundle",
        |world| {
            world.exchange_bundles();
            let next = TestCa::new();
            world.east.edit(ROOTS)["data"]["ca-bundle.crt"] = text(next.anchor_pem());
        },
    ),
    // Links.
    fails(
        "l5d-multicluster-links-are-valid",
        &[
            "Link linkerd-multicluster/east",
            "spec.gatewayPort",
            "mc-gateway",
        ],
        "multicluster link-gen",
        |world| world.own.edit(LINK)["spec"]["gatewayPort"] = text("mc-gateway"),
    ),
    fails(
        "multicluster-links-unique",
        &[
            "Link linkerd-multicluster/east-2 has the targetClusterName east of Link linkerd-multicluster/east",
        ],
        "kubectl -n linkerd-multicluster delete link east-2",
        |world| {
            let mut other = link("east-2");
            other["metadata"]["creationTimestamp"] = text("2026-02-01T00:00:00Z");
            world.own.put(&format!("{LINK}-2"), other);
        },
    ),
    // Gateways.
    warns(
        GATEWAYS,
        &[
            "Link linkerd-multicluster/east: cluster east has no gateway",
            "mirror.linkerd.io/gateway-identity",
        ],
        LINK_AGAIN,
        |world| world.east.remove(GATEWAY),
    ),
    warns(
        GATEWAYS,
        &["Service linkerd-multicluster/linkerd-gateway of cluster east has no address yet"],
        LINK_AGAIN,
        |world| world.east.edit(GATEWAY)["status"] = json!({}),
    ),
    warns(
        GATEWAYS,
        &[
            "Link linkerd-multicluster/east: spec.gatewayAddress is \\\"192.0.2.1\\\"",
            "has \\\"192.0.2.9\\\"",
        ],
        LINK_AGAIN,
        |world| {
            let status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.9" }] } });
            world.east.edit(GATEWAY)["status"] = status;
        },
    ),
    warns(
        GATEWAYS,
        &[
            "spec.gatewayPort is \\\"4143\\\", but Service linkerd-multicluster/linkerd-gateway of cluster east has \\\"443\\\"",
        ],
        LINK_AGAIN,
        |world| world.east.edit(GATEWAY)["spec"]["ports"][0]["port"] = json!(443),
    ),
    warns(
        GATEWAYS,
        &[
            "Link linkerd-multicluster/east: spec.gatewayIdentity is \\\"gateway.example\\\"",
            "has \\\"other.example\\\"",
        ],
        LINK_AGAIN,
        |world| {
            let annotations = &mut world.east.edit(GATEWAY)["metadata"]["annotations"];
            annotations["mirror.linkerd.io/gateway-identity"] = text("other.example");
        },
    ),
    fails(
        "multicluster-probe-ports",
        &[
            "Service linkerd-multicluster/probe-east has port 4191",
            "spec.probeSpec.port of Link linkerd-multicluster/east is 30191",
        ],
        "--set 'controllers[0].gateway.probe.port=30191'",
        |world| {
            world.own.edit(LINK)["spec"]["probeSpec"]["port"] = text("30191");
            world.east.edit(GATEWAY)["spec"]["ports"][1]["port"] = json!(30191);
        },
    ),
    fails(
        "l5d-multicluster-gateways-endpoints",
        &[
            "Service linkerd-multicluster/probe-east has no endpoints",
            "cluster east",
        ],
        "get pods,services",
        |world| world.own.remove(PROBE_ENDPOINTS),
    ),
    fails(
        "l5d-multicluster-gateways-endpoints",
        &["no Service has the label mirror.linkerd.io/mirrored-gateway for cluster east"],
        "get pods,services",
        |world| world.own.remove(PROBE),
    ),
    // Mirror controllers.
    fails(
        RUNNING,
        &["Link linkerd-multicluster/east has no mirror controller"],
        "add {link: {ref: {name: east}}} to the value controllers",
        |world| world.own.remove(CONTROLLER),
    ),
    fails(
        RUNNING,
        &["Deployment linkerd-multicluster/controller-east has no replicas"],
        "kubectl -n linkerd-multicluster scale deployment controller-east --replicas=1",
        |world| world.own.edit(CONTROLLER)["spec"]["replicas"] = json!(0),
    ),
    fails(
        "l5d-multicluster-gateways-endpoints",
        &[
            "the gateway of cluster east",
            "no controller holds Lease service-mirror-write-east",
        ],
        "get pods,services",
        |world| world.own.edit(LEASE)["spec"] = json!({}),
    ),
    warns(
        "multicluster-controllers-version",
        &["Deployment linkerd-multicluster/controller-east has version v0"],
        "multicluster install",
        |world| {
            let pod = &mut world.own.edit(CONTROLLER)["spec"]["template"]["spec"];
            pod["containers"][0]["image"] = text("mesh/controller:v0");
        },
    ),
    fails(
        "l5d-multicluster-source-rbac-correct",
        &["the mirror controller of east may not update endpoints"],
        "multicluster install",
        |world| world.own.denied = vec!["update endpoints"],
    ),
    // Mirrors.
    warns(
        "l5d-multicluster-orphaned-services",
        &["mirror shop/web-east is of cluster west, which no Link targets"],
        "kubectl -n shop delete service web-east",
        |world| {
            let labels = &mut world.own.edit(MIRROR)["metadata"]["labels"];
            labels["mirror.linkerd.io/cluster-name"] = text("west");
        },
    ),
    fails(
        "l5d-multicluster-services-endpoints",
        &["mirror shop/web-east has no endpoints", "cluster east"],
        "get endpoints",
        |world| world.own.remove(MIRROR_ENDPOINTS),
    ),
    warns(
        "multicluster-services-mirrored",
        &["Service bank/web of cluster east is not mirrored: there is no namespace bank"],
        "kubectl create namespace bank",
        |world| {
            world.own.edit(LINK)["status"] = json!({ "mirrorServices": [{
                "controllerName": "linkerd.io/service-mirror",
                "remoteRef": { "kind": "Service", "name": "web", "namespace": "bank" },
                "conditions": [{
                    "type": "Mirrored", "status": "False", "reason": "MissingNamespace",
                    "message": "there is no namespace bank",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            }] });
        },
    ),
];
