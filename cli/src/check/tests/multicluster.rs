//! Faults of links to other clusters.

use serde_json::{Value, json};

use super::edits::{edit, edit_pod};
use super::faults::{Fault, check};
use super::fixture::multicluster::{add_multicluster, endpoints, service};
use super::fixture::{NOW, TestCa};
use super::{expect_advice, row, wrong_rows};
use crate::facts::{Facts, LinkFacts, Target, TargetMesh};
use crate::output::style::Mark;

/// Returns the Link to cluster east.
fn east(facts: &mut Facts) -> &mut LinkFacts {
    &mut facts.multicluster.links.as_mut().unwrap()[0]
}

fn target(facts: &mut Facts) -> &mut Target {
    east(facts).target.as_mut().unwrap()
}

fn mesh(facts: &mut Facts) -> &mut TargetMesh {
    target(facts).mesh.as_mut().unwrap()
}

/// Edits the Service of the gateway of cluster east.
fn edit_gateway(facts: &mut Facts, change: fn(&mut Value)) {
    change(&mut edit(&mut target(facts).gateways, "linkerd-gateway"));
}

fn replace_endpoints(facts: &mut Facts, at: usize, list: &str) {
    let all = facts.multicluster.endpoints.as_mut().unwrap();
    let old = &all[at].metadata;
    let (namespace, name) = (old.namespace.clone().unwrap(), old.name.clone().unwrap());
    all[at] = endpoints(&namespace, &name, list);
}

pub(super) const FAULTS: &[Fault] = &[
    check("l5d-multicluster-link-crd-exists").fails("does not serve", |facts| {
        add_multicluster(facts);
        let served = &mut facts.api_server.as_mut().unwrap().served;
        served
            .as_mut()
            .unwrap()
            .retain(|kind| !kind.ends_with("/Link"));
    }),
    check("l5d-multicluster-links-are-valid").fails(
        "Link linkerd-multicluster/east: spec.g",
        |facts| {
            add_multicluster(facts);
            east(facts).link = Err("spec.gatewayPort: \"x\" is not a port".to_owned());
        },
    ),
    check("l5d-multicluster-links-version").warns("is of version v0, this command", |facts| {
        add_multicluster(facts);
        let link = east(facts).link.as_mut().unwrap();
        let annotations = link.metadata.annotations.as_mut().unwrap();
        annotations.insert(
            "linkerd.io/created-by".to_owned(),
            "linkerd/cli v0".to_owned(),
        );
    }),
    check("l5d-multicluster-links-version").warns("does not say", |facts| {
        add_multicluster(facts);
        east(facts).link.as_mut().unwrap().metadata.annotations = None;
    }),
    check("l5d-smc-target-clusters-access").fails("cluster east: no such Secret", |facts| {
        add_multicluster(facts);
        east(facts).target = Err("no such Secret".to_owned());
    }),
    check("l5d-smc-target-clusters-access").fails("may not watch services", |facts| {
        add_multicluster(facts);
        target(facts).denied = Ok(vec!["watch services".to_owned()]);
    }),
    check("l5d-smc-target-clusters-access").fails("namespace linkerd has no Secret", |facts| {
        add_multicluster(facts);
        let discovered = facts.multicluster.discovered.as_mut().unwrap();
        discovered.retain(|it| it.cluster != "flat");
    }),
    check("l5d-smc-target-clusters-access").fails(
        "Secret linkerd/cluster-credentials-flat is not of type",
        |facts| {
            add_multicluster(facts);
            facts.multicluster.discovered.as_mut().unwrap()[1].is_followed = false;
        },
    ),
    check("multicluster-links-unique").fails(
        "flat has the targetClusterName east of Link linkerd-multicluster/east",
        |facts| {
            add_multicluster(facts);
            let links = facts.multicluster.links.as_mut().unwrap();
            let other = links[1].link.as_mut().unwrap();
            other.spec.target_cluster_name = "east".to_owned();
        },
    ),
    check("multicluster-targets-match").fails("is of this cluster, not of east", |facts| {
        add_multicluster(facts);
        let own = facts.objects.config.as_mut().unwrap().as_mut().unwrap();
        own.metadata.uid = Some("east".to_owned());
    }),
    check("multicluster-targets-match").fails(
        "Secret linkerd-multicluster/cluster-credentials-flat: its kubeconfig is of the cluster that Link east reaches",
        |facts| {
            add_multicluster(facts);
            let links = facts.multicluster.links.as_mut().unwrap();
            let target = links[1].target.as_mut().unwrap();
            target.mesh.as_mut().unwrap().id = "east".to_owned();
        },
    ),
    check("multicluster-targets-match").fails("spec.targetClusterDomain is", |facts| {
        add_multicluster(facts);
        mesh(facts).cluster_domain = "east.example".to_owned();
    }),
    check("multicluster-targets-match").fails(
        "annotation multicluster.linkerd.io/trust-domain is cluster.local, but",
        |facts| {
            add_multicluster(facts);
            mesh(facts).trust_domain = "east.example".to_owned();
        },
    ),
    check("multicluster-clocks").warns("east is 91 s behind this cluster's", |facts| {
        add_multicluster(facts);
        target(facts).clock_ahead = Some(-90);
    }),
    check("multicluster-controllers-version").warns(
        "controller-flat has version v0, the control plane",
        |facts| {
            add_multicluster(facts);
            let mut controller = edit(&mut facts.multicluster.controllers, "controller-flat");
            let pod = &mut controller["spec"]["template"]["spec"];
            pod["containers"][0]["image"] = json!("mesh/controller:v0");
        },
    ),
    check("multicluster-gateways-match").warns(
        "spec.gatewayPort is \"4143\", but Service linkerd-multicluster/linkerd-gateway",
        |facts| {
            add_multicluster(facts);
            edit_gateway(facts, |it| it["spec"]["ports"][0]["port"] = json!(443));
        },
    ),
    check("multicluster-gateways-match").fails("spec.gatewayIdentity is", |facts| {
        add_multicluster(facts);
        edit_gateway(facts, |it| {
            let annotations = &mut it["metadata"]["annotations"];
            annotations["mirror.linkerd.io/gateway-identity"] = json!("other.example");
        });
        east(facts).gateway.as_mut().unwrap().as_mut().unwrap().alive = false;
    }),
    check("multicluster-gateways-match").fails("cluster east has no gateway", |facts| {
        add_multicluster(facts);
        target(facts).gateways = Ok(Vec::new());
        east(facts).gateway.as_mut().unwrap().as_mut().unwrap().alive = false;
    }),
    check("multicluster-gateways-match").warns("of cluster east has no address yet", |facts| {
        add_multicluster(facts);
        edit_gateway(facts, |it| it["status"] = json!({}));
    }),
    check("multicluster-probe-ports").fails(
        "Service linkerd-multicluster/probe-east has port 4191, but spec.probeSpec.port",
        |facts| {
            add_multicluster(facts);
            let link = east(facts).link.as_mut().unwrap();
            link.spec.probe_spec.as_mut().unwrap().port = "30191".to_owned();
            edit_gateway(facts, |it| it["spec"]["ports"][1]["port"] = json!(30191));
        },
    ),
    check("multicluster-services-mirrored").warns(
        "Service bank/web of cluster east is not mirrored: there is no namespace bank",
        |facts| {
            add_multicluster(facts);
            let status = json!({ "mirrorServices": [{
                "controllerName": "linkerd.io/service-mirror",
                "remoteRef": { "kind": "Service", "name": "web", "namespace": "bank" },
                "conditions": [{
                    "type": "Mirrored", "status": "False", "reason": "MissingNamespace",
                    "message": "there is no namespace bank",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            }] });
            let link = east(facts).link.as_mut().unwrap();
            link.status = Some(serde_json::from_value(status).unwrap());
        },
    ),
    check("l5d-multicluster-clusters-share-anchors").fails("refuse each other", |facts| {
        add_multicluster(facts);
        target(facts).anchors = Ok(vec![TestCa::new("other", 365).der()]);
    }),
    check("l5d-multicluster-clusters-share-anchors").fails("are unknown: forbidden", |facts| {
        add_multicluster(facts);
        target(facts).anchors = Err("forbidden".to_owned());
    }),
    check("l5d-multicluster-clusters-share-anchors").warns(
        "not this one, trusts \"CN=other\"",
        |facts| {
            add_multicluster(facts);
            let anchors = target(facts).anchors.as_mut().unwrap();
            anchors.push(TestCa::new("other", 365).der());
        },
    ),
    check("l5d-multicluster-clusters-share-anchors").warns(
        "and not east, trusts \"CN=other\"",
        |facts| {
            add_multicluster(facts);
            let anchors = facts.trust.anchors.as_mut().unwrap();
            anchors.push(TestCa::new("other", 365).der());
        },
    ),
    check("l5d-multicluster-source-rbac-correct").fails("of east may not list services", |facts| {
        add_multicluster(facts);
        east(facts).denied = Ok(vec!["list services".to_owned()]);
    }),
    check("l5d-multicluster-service-mirror-running").fails(
        "east has no mirror controller",
        |facts| {
            add_multicluster(facts);
            facts.multicluster.controllers.as_mut().unwrap().remove(0);
        },
    ),
    check("l5d-multicluster-service-mirror-running").fails(
        "has several mirror controllers",
        |facts| {
            add_multicluster(facts);
            let controllers = facts.multicluster.controllers.as_mut().unwrap();
            controllers.push(controllers[0].clone());
        },
    ),
    check("l5d-multicluster-service-mirror-running").fails(
        "the mirror controller of flat: no controller holds",
        |facts| {
            add_multicluster(facts);
            let links = facts.multicluster.links.as_mut().unwrap();
            links[1].gateway = Err("no controller holds Lease a".to_owned());
        },
    ),
    check("l5d-multicluster-service-mirror-running").fails("no available replica", |facts| {
        add_multicluster(facts);
        edit(&mut facts.multicluster.controllers, "controller-east")["status"] = json!({});
    }),
    check("l5d-multicluster-service-mirror-running").fails("has no replicas", |facts| {
        add_multicluster(facts);
        let mut controller = edit(&mut facts.multicluster.controllers, "controller-east");
        controller["spec"]["replicas"] = json!(0);
    }),
    check("l5d-multicluster-managed-controllers").warns("is of `multicluster link`", |facts| {
        add_multicluster(facts);
        let mut controller = edit(&mut facts.multicluster.controllers, "controller-east");
        controller["metadata"]["labels"]["component"] = json!("service-mirror");
    }),
    check("l5d-multicluster-gateways-endpoints").fails(
        "east does not respond to probes",
        |facts| {
            add_multicluster(facts);
            let gateway = east(facts).gateway.as_mut().unwrap();
            gateway.as_mut().unwrap().alive = false;
        },
    ),
    check("l5d-multicluster-gateways-endpoints").fails("probe-east has no endpoints", |facts| {
        add_multicluster(facts);
        facts.multicluster.endpoints.as_mut().unwrap().remove(0);
    }),
    check("l5d-multicluster-gateways-endpoints").fails("its gateway is not probed", |facts| {
        add_multicluster(facts);
        facts.multicluster.services.as_mut().unwrap().remove(0);
    }),
    check("l5d-multicluster-gateways-endpoints").fails(
        "several Services have the gateway",
        |facts| {
            add_multicluster(facts);
            let services = facts.multicluster.services.as_mut().unwrap();
            let mut second = services[0].clone();
            second.metadata.name = Some("probe-gateway-east".to_owned());
            services.push(second);
        },
    ),
    check("l5d-multicluster-gateways-endpoints").fails("cluster east: refused", |facts| {
        add_multicluster(facts);
        east(facts).gateway = Err("refused".to_owned());
    }),
    check("l5d-multicluster-services-endpoints").fails("whose gateway is not alive", |facts| {
        add_multicluster(facts);
        replace_endpoints(facts, 1, "notReadyAddresses");
    }),
    check("l5d-multicluster-services-endpoints").fails("shop/web-east has no endpoints", |facts| {
        add_multicluster(facts);
        facts.multicluster.endpoints.as_mut().unwrap().remove(1);
    }),
    check("l5d-multicluster-orphaned-services").warns(
        "shop/old-west is of cluster west",
        |facts| {
            add_multicluster(facts);
            let services = facts.multicluster.services.as_mut().unwrap();
            services.push(service("shop", "old-west", "west", "mirrored-service"));
            let all = facts.multicluster.endpoints.as_mut().unwrap();
            all.push(endpoints("shop", "old-west", "addresses"));
        },
    ),
    check("l5d-multicluster-proxy-healthy").warns("is not ready", |facts| {
        add_multicluster(facts);
        let mut pod = edit_pod(facts, "controller-east-0");
        pod["status"]["containerStatuses"][1]["ready"] = json!(false);
    }),
    check("l5d-multicluster-proxy-cp-version").warns(
        "has version v0, the control plane",
        |facts| {
            add_multicluster(facts);
            let mut pod = edit_pod(facts, "controller-east-0");
            pod["spec"]["containers"][1]["image"] = json!("mesh/proxy:v0");
        },
    ),
    check("l5d-multicluster-proxy-cli-version").warns("has version", |facts| {
        add_multicluster(facts);
        facts.cli_version = "v9";
    }),
];

#[test]
fn all_checks_pass_with_healthy_links() {
    let mut facts = super::fixture::healthy();
    add_multicluster(&mut facts);
    assert_eq!(wrong_rows(&facts), [""; 0]);
    assert_eq!(facts.now, NOW);
}

/// Rows about other Links are still useful.
#[test]
fn invalid_link_hides_no_other() {
    let mut facts = super::fixture::healthy();
    add_multicluster(&mut facts);
    facts.multicluster.links.as_mut().unwrap()[1].link = Err("invalid".to_owned());
    east(&mut facts).target = Err("refused".to_owned());
    assert_eq!(
        row(&facts, "l5d-multicluster-links-are-valid").mark,
        Mark::Fail
    );
    let access = row(&facts, "l5d-smc-target-clusters-access");
    assert_eq!(access.detail, ["cluster east: refused"]);
    // The mirror of the invalid Link is not orphaned.
    assert_eq!(
        row(&facts, "l5d-multicluster-orphaned-services").mark,
        Mark::Ok
    );
}

/// The advice has the names, so that it can be used as it is.
#[test]
fn advice_names_what_is_to_be_repaired() {
    let expected = [
        (
            "no such Secret",
            "multicluster link-gen --cluster-name east",
        ),
        (
            "is not of type",
            "-n linkerd delete secret cluster-credentials-flat; then",
        ),
        (
            "there is no namespace bank",
            "kubectl create namespace bank",
        ),
        (
            "has port 4191, but",
            "--set 'controllers[0].gateway.probe.port=30191'",
        ),
        (
            "has the targetClusterName",
            "-n linkerd-multicluster delete link flat",
        ),
    ];
    expect_advice(FAULTS, &expected);
}

/// A status may have a thousand entries.
#[test]
fn only_some_of_many_failed_services_are_named() {
    let mut facts = super::fixture::healthy();
    let fault = FAULTS
        .iter()
        .find(|it| it.check == "multicluster-services-mirrored");
    (fault.unwrap().inject)(&mut facts);
    let link = east(&mut facts).link.as_mut().unwrap();
    let services = &mut link.status.as_mut().unwrap().mirror_services;
    *services = vec![services[0].clone(); 1000];
    let detail = row(&facts, "multicluster-services-mirrored").detail;
    assert_eq!(detail.len(), 11);
    assert_eq!(
        detail[10],
        "990 further Services of cluster east are not mirrored"
    );
}

/// Where nothing is linked, as in a target cluster.
#[test]
fn cluster_without_links_has_no_problem() {
    let mut facts = super::fixture::healthy();
    add_multicluster(&mut facts);
    let known = &mut facts.multicluster;
    known.links = Ok(Vec::new());
    known.controllers = Ok(Vec::new());
    known.discovered = Ok(Vec::new());
    known.services = Ok(Vec::new());
    assert_eq!(wrong_rows(&facts), [""; 0]);
    let detail = row(&facts, "l5d-multicluster-links-are-valid").detail;
    assert_eq!(detail, ["this cluster has no Link"]);
}
