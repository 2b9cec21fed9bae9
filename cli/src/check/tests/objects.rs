//! Faults that show only in the object itself.

use mesh_core::node::{Repair, RepairKind};
use serde_json::json;

use super::super::facts::InjectionDryRun;
use super::super::fixture::{self, NOW, TestCa, pod};
use super::super::{Facts, Mark};
use super::faults::{
    Fault, change_pod, fails, not_ready, pod_named, pods, policy, set_value, time, warns,
};
use super::{evaluate, find, healthy};
use crate::clients::metrics;
use crate::mesh::Scope;

pub(super) const FAULTS: &[Fault] = &[
    fails("issuer-may-sign", "lack CA:TRUE", |facts| {
        let anchor = TestCa::new("root", 365);
        let (der, _) = anchor.server("identity.linkerd.cluster.local", 300);
        facts.trust.anchors = Ok(vec![anchor.der()]);
        facts.trust.issuer = Ok(vec![der]);
    }),
    fails("issuer-may-sign", "lacks keyCertSign", |facts| {
        let anchor = TestCa::new("root", 365);
        facts.trust.anchors = Ok(vec![anchor.der()]);
        facts.trust.issuer = Ok(vec![anchor.without_signing("identity", 300)]);
    }),
    warns(
        "l5d-identity-trustAnchors-not-expiring-soon",
        "the issuer does not need it",
        |facts| {
            let old = TestCa::new("old", 10).der();
            facts.trust.anchors.as_mut().unwrap().push(old);
        },
    ),
    warns(
        "l5d-identity-data-plane-proxies-certs-match-ca",
        "shop/web-1 started with other trust anchors",
        |facts| {
            // Linkerd's proxy does not read the ConfigMap.
            change_pod(facts, "web-1", |pod| {
                let proxy = &mut pod["spec"]["containers"][1];
                proxy["image"] = json!("cr.l5d.io/linkerd/proxy:edge-26.1.1");
                let variable =
                    json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "old"});
                proxy["env"].as_array_mut().unwrap().push(variable);
            });
        },
    ),
    fails(
        "trust-roots-published",
        "pods web-0, web-1 trust the old anchors",
        |facts| {
            facts.objects.trust_roots.as_mut().unwrap()[1] = fixture::trust_roots("shop", "stale");
        },
    ),
    fails(
        "control-plane-endpoints",
        "linkerd-dst has no ready endpoint",
        |facts| {
            let service = json!({
                "metadata": {
                    "name": "linkerd-dst", "namespace": "linkerd",
                    "labels": {"linkerd.io/control-plane-component": "destination"}
                },
                "spec": {"selector": {"linkerd.io/control-plane-component": "dst"}, "ports": [{"port": 8086}]},
            });
            let services = facts.objects.services.as_mut().unwrap();
            services.push(serde_json::from_value(service).unwrap());
        },
    ),
    fails(
        "l5d-api-control-ready",
        "GET /ready on port 9990 fails: Readiness probe failed: HTTP probe failed with statuscode: 503",
        |facts| {
            for name in ["linkerd-destination-0", "linkerd-destination-1"] {
                not_ready(facts, name);
            }
            change_pod(facts, "linkerd-destination-0", |pod| {
                pod["spec"]["containers"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({
                        "name": "policy", "image": "x",
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 9990}}
                    }));
                let status = |name: &str, ready: bool| {
                    json!({
                        "name": name, "image": "x", "imageID": "", "ready": ready, "restartCount": 0, "state": {"running": {}}
                    })
                };
                pod["status"]["containerStatuses"] =
                    json!([status("destination", true), status("policy", false)]);
            });
            let event = |container: &str, message: &str| {
                json!({
                    "metadata": {}, "type": "Warning", "message": message,
                    "involvedObject": {
                        "kind": "Pod", "name": "linkerd-destination-0", "fieldPath": format!("spec.containers{{{container}}}")
                    },
                })
            };
            let failed = "Readiness probe failed: HTTP probe failed with statuscode: 503";
            facts.objects.events = Ok(vec![
                serde_json::from_value(event("policy", failed)).unwrap(),
                serde_json::from_value(event("destination", "an old event")).unwrap(),
            ]);
        },
    ),
    fails(
        "control-plane-deployments",
        "no pod can be created",
        |facts| {
            without_injector(facts, "Fail");
        },
    ),
    fails("agent-ready", "none has the label disk=ssd", |facts| {
        let set = &mut facts.objects.daemon_sets.as_mut().unwrap()[0];
        let spec = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        spec.node_selector = Some([("disk".to_owned(), "ssd".to_owned())].into());
        pods(facts).retain(|pod| {
            !pod.metadata
                .name
                .as_deref()
                .unwrap()
                .starts_with("mesh-agent")
        });
    }),
    warns(
        "l5d-existence-unschedulable-pods",
        "no node has the label disk=ssd",
        |facts| {
            change_pod(facts, "linkerd-identity-1", |pod| {
                pod["spec"]["nodeSelector"] = json!({"disk": "ssd"});
                pod["status"]["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector"
                }]);
            });
        },
    ),
    fails("data-plane-containers", "ErrImagePull", |facts| {
        cannot_pull(facts, "web-0", "linkerd-proxy");
    }),
    warns(
        "nodes-ready",
        "node b is not Ready (Kubelet stopped posting node status.): the state of the 1 meshed pod there is unknown",
        |facts| {
            make_node_unready(facts);
        },
    ),
    warns(
        "namespace-labels",
        "namespace plain has linkerd.io/inject as a label",
        |facts| {
            let namespace = &mut facts.objects.namespaces.as_mut().unwrap()[2];
            let label = [("linkerd.io/inject".to_owned(), "enabled".to_owned())];
            namespace.metadata.labels = Some(label.into());
        },
    ),
    warns(
        "pods-host-network",
        "shop/host has the injection annotation of namespace shop but uses the host network",
        |facts| {
            let mut host = pod("shop", "host", "a", false);
            host.spec.as_mut().unwrap().host_network = Some(true);
            pods(facts).push(host);
        },
    ),
    fails(
        "pods-marked-meshed",
        "plain/batch has the label linkerd.io/control-plane-ns but no proxy",
        |facts| {
            let pod = pod_named(facts, "batch");
            let labels = pod.metadata.labels.as_mut().unwrap();
            labels.insert(
                "linkerd.io/control-plane-ns".to_owned(),
                "linkerd".to_owned(),
            );
        },
    ),
    warns(
        "policy-authorizations",
        "Server shop/web denies every request to port http of shop/web-0 and 1 pod more",
        |facts| {
            let policies = facts.objects.policies.as_mut().unwrap();
            policies.retain(|object| object["kind"] != "AuthorizationPolicy");
        },
    ),
    warns(
        "policy-server-ports",
        "Server shop/web and Server shop/by-number both select port 8080 of shop/web-0: only web",
        |facts| {
            let server = json!({
                "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
                "metadata": {"name": "by-number", "namespace": "shop", "creationTimestamp": "2025-12-31T00:00:00Z"},
                "spec": {"podSelector": {}, "port": 8080, "accessPolicy": "all-authenticated"},
            });
            facts.objects.policies.as_mut().unwrap().push(server);
        },
    ),
    warns(
        "repairs",
        "node b: the agent made the program mesh-cni executable again: once in the last day, the last time 3 minutes ago (2025-12-31T23:56:40Z); /opt/cni/bin/mesh-cni",
        |facts| {
            repair(facts, RepairKind::PluginNotExecutable);
        },
    ),
    warns(
        "repairs",
        "restored the caBundle of its registration, which was altered or removed: 3 times in the last day, the last time 10 minutes ago (2025-12-31T23:50:00Z)",
        |facts| {
            // Two replicas report two repairs and one.
            for (index, (times, at)) in [(2, NOW - 3600), (1, NOW - 600)].into_iter().enumerate() {
                let text = format!(
                    "mesh_injector_repairs_last_day{{found=\"ca-bundle-altered\"}} {times}\n\
                     mesh_injector_last_repair_timestamp_seconds{{found=\"ca-bundle-altered\"}} {at}\n\
                     mesh_injector_repairs_last_day{{found=\"certificate-missing\"}} 0\n"
                );
                facts.controllers[index].metrics = Ok(metrics::parse(&text));
            }
        },
    ),
    warns(
        "namespace-excluded",
        "excludes the injector by its label",
        |facts| {
            exclude_shop(facts);
            facts.webhook.dry_run = Ok(InjectionDryRun::NotAttempted(
                "no suitable namespace".to_owned(),
            ));
        },
    ),
];

fn repair(facts: &mut Facts, kind: RepairKind) {
    facts.agents[1].status.as_mut().unwrap().repairs = vec![Repair {
        kind,
        detail: "/opt/cni/bin/mesh-cni".to_owned(),
        at: NOW - 200,
        last_day: 1,
    }];
}

/// On every new node the agent enrols the pods that started before it.
#[test]
fn enrolment_in_place_is_not_a_warning() {
    let mut facts = healthy();
    repair(&mut facts, RepairKind::NotEnrolled);
    let reports = evaluate(&facts);
    let row = find(&reports, "repairs").unwrap();
    assert_eq!(row.mark, Mark::Ok);
    assert_eq!(
        row.detail,
        ["enrolled 1 pod in place that started without the plugin"]
    );
}

fn without_injector(facts: &mut Facts, policy: &str) {
    let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
    let webhook = &mut configuration.webhooks.as_mut().unwrap()[0];
    webhook.failure_policy = Some(policy.to_owned());
    let deployment = &mut facts.objects.deployments.as_mut().unwrap()[2];
    deployment.spec.as_mut().unwrap().replicas = Some(0);
    let injector = |name: &str| name.starts_with("linkerd-proxy-injector");
    pods(facts).retain(|pod| !injector(pod.metadata.name.as_deref().unwrap()));
}

fn cannot_pull(facts: &mut Facts, name: &str, container: &str) {
    change_pod(facts, name, |pod| {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9c", "uid": "u"}]);
        pod["metadata"]["labels"]["pod-template-hash"] = json!("5d9c");
        pod["status"]["containerStatuses"] = json!([{
            "name": container, "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
        }]);
    });
}

fn make_node_unready(facts: &mut Facts) {
    let node = &mut facts.objects.nodes.as_mut().unwrap()[1];
    let ready = json!([{
        "type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."
    }]);
    node.status.as_mut().unwrap().conditions = serde_json::from_value(ready).unwrap();
}

fn exclude_shop(facts: &mut Facts) {
    let namespace = &mut facts.objects.namespaces.as_mut().unwrap()[1];
    let label = "config.linkerd.io/admission-webhooks";
    namespace.metadata.labels = Some([(label.to_owned(), "disabled".to_owned())].into());
    let selector =
        json!({"matchExpressions": [{"key": label, "operator": "NotIn", "values": ["disabled"]}]});
    let configuration = facts.objects.webhooks.as_mut().unwrap().as_mut().unwrap();
    let webhook = &mut configuration.webhooks.as_mut().unwrap()[0];
    webhook.namespace_selector = serde_json::from_value(selector).unwrap();
}

fn advice(facts: &Facts, check: &str) -> String {
    find(&evaluate(facts), check).unwrap().advice.clone()
}

#[test]
fn advice_has_the_names_of_objects() {
    let with = |inject: fn(&mut Facts), check: &str| {
        let mut facts = healthy();
        inject(&mut facts);
        advice(&facts, check)
    };
    let excluded = with(exclude_shop, "namespace-excluded");
    assert_eq!(
        excluded,
        "kubectl label namespace shop config.linkerd.io/admission-webhooks-"
    );
    let image = with(
        |facts| cannot_pull(facts, "web-0", "linkerd-proxy"),
        "data-plane-containers",
    );
    assert!(
        image.starts_with("kubectl -n shop rollout undo deployment/web"),
        "{image}"
    );
    assert!(!image.contains(" logs "), "it has no log: {image}");
    let meshed = with(
        |facts| {
            let mut late = pod("shop", "late-7f-x", "a", false);
            let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "late-7f", "uid": "u"}]);
            late.metadata.owner_references = serde_json::from_value(owner).unwrap();
            let labels = late.metadata.labels.as_mut().unwrap();
            labels.insert("pod-template-hash".to_owned(), "7f".to_owned());
            pods(facts).push(late);
        },
        "pods-meshed",
    );
    assert_eq!(meshed, "kubectl -n shop rollout restart deployment/late");
}

#[test]
fn upgrade_command_depends_on_the_installing_tool() {
    let upgrade = |release: Option<&str>| {
        let mut facts = healthy();
        facts.objects.deployments.as_mut().unwrap().remove(0);
        let config = facts.objects.config.as_mut().unwrap().as_mut().unwrap();
        config.metadata.annotations = release
            .map(|release| [("meta.helm.sh/release-name".to_owned(), release.to_owned())].into());
        advice(&facts, "control-plane-deployments")
    };
    assert_eq!(upgrade(None), "meshctl upgrade | kubectl apply -f -");
    assert!(upgrade(Some("mesh")).starts_with("helm upgrade mesh CHART -n linkerd --reuse-values"));
}

/// The registration is correct, and deleting it would disable injection for the whole cluster.
#[test]
fn namespace_that_excludes_itself_does_not_fail_the_webhook() {
    let mut facts = healthy();
    exclude_shop(&mut facts);
    facts
        .objects
        .namespaces
        .as_mut()
        .unwrap()
        .push(serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap());
    let reports = evaluate(&facts);
    assert_eq!(find(&reports, "webhook-injects").unwrap().mark, Mark::Ok);
    // The dry run uses another namespace.
    assert_eq!(
        super::super::webhook::dry_run_namespace(&facts).unwrap(),
        "default"
    );
    facts.scope = Scope::Namespace("shop".to_owned());
    let reason = super::super::webhook::dry_run_namespace(&facts).unwrap_err();
    assert!(reason.contains("shop excludes the injector"), "{reason}");
    facts.webhook.dry_run = Ok(InjectionDryRun::NotAttempted(reason));
    assert_eq!(
        find(&evaluate(&facts), "webhook-injects").unwrap().mark,
        Mark::Ok
    );
}

#[test]
fn dry_run_skips_namespace_that_is_being_deleted() {
    let mut facts = healthy();
    facts.objects.namespaces.as_mut().unwrap()[1]
        .metadata
        .deletion_timestamp = Some(time("2026-01-01T00:00:00Z"));
    assert_eq!(
        super::super::webhook::dry_run_namespace(&facts).unwrap(),
        "plain"
    );
}

#[test]
fn missing_injector_with_policy_ignore_blocks_no_pods() {
    let mut facts = healthy();
    without_injector(&mut facts, "Ignore");
    let reports = evaluate(&facts);
    let row = find(&reports, "control-plane-deployments").unwrap();
    assert_eq!(
        row.detail,
        ["Deployment linkerd-proxy-injector is scaled to 0"]
    );
}

#[test]
fn server_that_allows_clients_is_ok() {
    let mark = |change: fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        find(&evaluate(&facts), "policy-authorizations")
            .unwrap()
            .mark
    };
    let for_namespace: fn(&mut Facts) = |facts| {
        policy(facts, "AuthorizationPolicy", |policy| {
            policy["spec"]["targetRef"] = json!({"kind": "Namespace", "name": "shop"});
        });
    };
    assert_eq!(mark(for_namespace), Mark::Ok);
    let open: fn(&mut Facts) = |facts| {
        let policies = facts.objects.policies.as_mut().unwrap();
        policies.retain(|object| object["kind"] != "AuthorizationPolicy");
        policy(facts, "Server", |server| {
            server["spec"]["accessPolicy"] = json!("audit");
        });
    };
    assert_eq!(mark(open), Mark::Ok);
    let by_route: fn(&mut Facts) = |facts| {
        policy(facts, "AuthorizationPolicy", |policy| {
            policy["spec"]["targetRef"] =
                json!({"group": "policy.linkerd.io", "kind": "HTTPRoute", "name": "get"});
        });
        let route = json!({
            "apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute",
            "metadata": {"name": "get", "namespace": "shop"},
            "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "web"}]},
        });
        facts.objects.policies.as_mut().unwrap().push(route);
    };
    assert_eq!(mark(by_route), Mark::Ok);
}

/// Copies of changed trust anchors need a minute to propagate.
#[test]
fn propagating_trust_anchors_are_ok() {
    let mark = |changed: &str| {
        let mut facts = healthy();
        let maps = facts.objects.trust_roots.as_mut().unwrap();
        maps[1] = fixture::trust_roots("shop", "old");
        maps[0].metadata.managed_fields =
            serde_json::from_value(json!([{"manager": "kubectl", "time": changed}])).unwrap();
        find(&evaluate(&facts), "trust-roots-published")
            .unwrap()
            .mark
    };
    assert_eq!(mark("2025-12-31T23:59:30Z"), Mark::Ok);
    assert_eq!(mark("2025-12-31T23:58:00Z"), Mark::Fail);
}

#[test]
fn bundles_are_compared_without_order_and_comments() {
    let (one, other) = (TestCa::new("a", 365).pem(), TestCa::new("b", 365).pem());
    let mut facts = healthy();
    facts.objects.trust_roots = Ok(vec![
        fixture::trust_roots("linkerd", &format!("{one}{other}")),
        fixture::trust_roots(
            "shop",
            &format!("# the new one\n{other}\n# the old one\n{one}"),
        ),
    ]);
    assert_eq!(
        find(&evaluate(&facts), "trust-roots-published")
            .unwrap()
            .mark,
        Mark::Ok
    );
}

#[test]
fn new_pods_are_excluded() {
    let reports = |created: &str| {
        let mut facts = healthy();
        pod_named(&mut facts, "web-1").metadata.creation_timestamp = Some(time(created));
        let pod = pod_named(&mut facts, "web-1").clone();
        let new = facts.is_new(&pod);
        let proxy = facts.proxies.iter_mut().find(|proxy| proxy.pod == "web-1");
        let proxy = proxy.unwrap();
        proxy.is_new = new;
        proxy.ready = Err("answers 503".to_owned());
        proxy.metrics = Err("cannot connect".to_owned());
        facts.agents[1].pods = Ok(Vec::new());
        evaluate(&facts)
    };
    let young = reports("2025-12-31T23:59:50Z");
    for check in [
        "pods-enrolled",
        "l5d-data-plane-ready",
        "proxy-certificates",
    ] {
        let row = find(&young, check).unwrap();
        assert_eq!(row.mark, Mark::Ok, "{check}: {:?}", row.detail);
        assert!(
            row.detail[0].ends_with("excluding 1 pod younger than 30 s"),
            "{:?}",
            row.detail
        );
    }
    let old = reports("2025-12-31T23:59:20Z");
    assert_eq!(find(&old, "pods-enrolled").unwrap().mark, Mark::Fail);
}

/// Pods on a node that is not Ready are not queried.
#[test]
fn unready_node_is_reported_once() {
    let mut facts = healthy();
    make_node_unready(&mut facts);
    not_ready(&mut facts, "mesh-agent-b");
    facts.agents[1].status = Err("cannot reach port 9993".to_owned());
    facts.agents[1].pods = Err("cannot reach port 9993".to_owned());
    facts.proxies.retain(|proxy| proxy.pod != "web-1");
    let reports = evaluate(&facts);
    let all = reports.iter().flat_map(|category| &category.checks);
    let wrong: Vec<&str> = all
        .filter(|report| report.mark != Mark::Ok)
        .map(|report| report.name)
        .collect();
    assert_eq!(wrong, ["nodes-ready"]);
}

#[test]
fn expired_certificate_is_not_reported_as_expiring_soon() {
    let mut facts = healthy();
    facts.trust.issuer = Ok(vec![TestCa::new("old", -1).der()]);
    facts.trust.anchors = Ok(vec![TestCa::new("old", -1).der()]);
    let (_, pem) = TestCa::new("webhook", 365).server(fixture::SERVER_NAME, -1);
    facts.objects.webhook_secret = Ok(Some(fixture::webhook_secret(&pem)));
    let reports = evaluate(&facts);
    for check in [
        "l5d-identity-trustAnchors-not-expiring-soon",
        "l5d-identity-issuer-cert-not-expiring-soon",
        "l5d-proxy-injector-webhook-cert-not-expiring-soon",
    ] {
        assert_eq!(find(&reports, check).unwrap().mark, Mark::Ok, "{check}");
    }
    assert_eq!(facts.now, NOW);
}

#[test]
fn missing_kind_does_not_skip_other_checks() {
    let mut facts = healthy();
    let server = facts.api_server.as_mut().unwrap();
    let served = server.served.as_mut().unwrap();
    served.remove("linkerd.io/v1alpha2/ServiceProfile");
    set_value(
        &mut facts,
        "identityTrustDomain: cluster.local",
        "identityTrustDomain: other",
    );
    let reports = evaluate(&facts);
    assert_eq!(
        find(&reports, "l5d-existence-crd").unwrap().mark,
        Mark::Fail
    );
    assert_eq!(find(&reports, "config-drift").unwrap().mark, Mark::Fail);
}
