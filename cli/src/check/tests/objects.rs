//! Faults that show only in the object itself.

use mesh_core::exposition;
use mesh_core::node::{Repair, RepairKind};
use mesh_k8s::kinds::ResourceExt;
use serde_json::{Value, json};

use super::edits::{
    add_external_server, add_host_pod, add_policy, add_route, cannot_pull, cannot_schedule,
    container_status, dual_stack, edit, edit_pod, edit_webhook, mount_anchors, not_ready, pods,
    policy, remove_pods, scale_injector_to_zero, served, set_events, set_value, trust_old_anchors,
};
use super::faults::{Fault, check};
use super::fixture::{self, NOW, TestCa, pod};
use super::{evaluate, find, healthy, row, wrong_rows};
use crate::facts::injection::dry_run_namespace;
use crate::facts::{Facts, InjectionDryRun};
use crate::output::style::Mark;
use crate::resource::Scope;

pub(super) const FAULTS: &[Fault] = &[
    check("issuer-may-sign").fails("lack CA:TRUE", |facts| {
        let anchor = TestCa::new("root", 365);
        let (der, _) = anchor.server("identity.linkerd.cluster.local", 300);
        facts.trust.anchors = Ok(vec![anchor.der()]);
        facts.trust.issuer = Ok(vec![der]);
    }),
    check("issuer-may-sign").fails("lacks keyCertSign", |facts| {
        let anchor = TestCa::new("root", 365);
        facts.trust.anchors = Ok(vec![anchor.der()]);
        facts.trust.issuer = Ok(vec![anchor.without_signing("identity", 300)]);
    }),
    check("l5d-identity-trustAnchors-not-expiring-soon").warns(
        "the issuer does not need it",
        |facts| {
            let old = TestCa::new("old", 10).der();
            facts.trust.anchors.as_mut().unwrap().push(old);
        },
    ),
    check("l5d-identity-data-plane-proxies-certs-match-ca").warns(
        "shop/web-1 started with other trust anchors",
        |facts| {
            // Linkerd's proxy reads only its environment.
            let mut pod = edit_pod(facts, "web-1");
            pod["spec"]["containers"][1]["image"] = json!("cr.l5d.io/linkerd/proxy:edge-26.1.1");
            trust_old_anchors(&mut pod);
        },
    ),
    check("trust-roots-published").warns(
        "shop/web-0 takes trust anchors from ConfigMap linkerd-identity-trust-roots",
        |facts| {
            let mut pod = edit_pod(facts, "web-0");
            mount_anchors(&mut pod);
        },
    ),
    check("trust-roots-published").warns("ConfigMap linkerd-identity-trust-roots of namespace shop", |facts| {
        let maps = facts.objects.trust_roots.as_mut().unwrap();
        maps.push(fixture::trust_roots("shop", "stale"));
    }),
    check("control-plane-endpoints").fails("linkerd-dst has no ready endpoint", |facts| {
        let service = json!({
            "metadata": {
                "name": "linkerd-dst", "namespace": "linkerd",
                "labels": {"linkerd.io/control-plane-component": "destination"}
            },
            "spec": {"selector": {"linkerd.io/control-plane-component": "dst"}, "ports": [{"port": 8086}]},
        });
        let services = facts.objects.services.as_mut().unwrap();
        services.push(serde_json::from_value(service).unwrap());
    }),
    check("l5d-api-control-ready").fails(
        "GET /ready on port 9990 fails: Readiness probe failed: HTTP probe failed with statuscode: 503",
        |facts| {
            for name in ["linkerd-destination-0", "linkerd-destination-1"] {
                not_ready(facts, name);
            }
            let mut pod = edit_pod(facts, "linkerd-destination-0");
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            containers.push(json!({
                "name": "policy", "image": "x",
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 9990}}
            }));
            let status = |name: &str, ready: bool| {
                container_status(name, json!({"ready": ready, "state": {"running": {}}}))
            };
            pod["status"]["containerStatuses"] =
                json!([status("destination", true), status("policy", false)]);
            drop(pod);
            let event = |container: &str, message: &str| {
                json!({
                    "metadata": {}, "type": "Warning", "message": message,
                    "involvedObject": {
                        "kind": "Pod", "name": "linkerd-destination-0", "fieldPath": format!("spec.containers{{{container}}}")
                    },
                })
            };
            let failed = "Readiness probe failed: HTTP probe failed with statuscode: 503";
            let events = json!([event("policy", failed), event("destination", "an old event")]);
            set_events(facts, events);
        },
    ),
    check("control-plane-deployments").fails("no pod can be created", |facts| {
        without_injector(facts, "Fail");
    }),
    check("agent-ready").fails("none has the label disk=ssd", |facts| {
        let mut set = edit(&mut facts.objects.daemon_sets, "mesh-agent");
        set["spec"]["template"]["spec"]["nodeSelector"] = json!({"disk": "ssd"});
        drop(set);
        remove_pods(facts, "mesh-agent");
    }),
    check("l5d-existence-unschedulable-pods").warns("no node has the label disk=ssd", |facts| {
        edit_pod(facts, "linkerd-identity-1")["spec"]["nodeSelector"] = json!({"disk": "ssd"});
        let message = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector";
        cannot_schedule(facts, message);
    }),
    check("data-plane-containers").fails("ErrImagePull", |facts| {
        cannot_pull_proxy(facts);
    }),
    check("nodes-ready").warns(
        "node b is not Ready (Kubelet stopped posting node status.): the state of the 1 meshed pod there is unknown",
        make_node_unready,
    ),
    check("namespace-labels").warns("namespace plain has linkerd.io/inject as a label", |facts| {
        let mut namespace = edit(&mut facts.objects.namespaces, "plain");
        namespace["metadata"]["labels"] = json!({"linkerd.io/inject": "enabled"});
    }),
    check("pods-host-network").warns(
        "shop/host has the injection annotation of namespace shop but uses the host network",
        add_host_pod,
    ),
    check("pods-marked-meshed").fails(
        "plain/batch has the label linkerd.io/control-plane-ns but no proxy",
        |facts| {
            let mut pod = edit_pod(facts, "batch");
            pod["metadata"]["labels"]["linkerd.io/control-plane-ns"] = json!("linkerd");
        },
    ),
    check("policy-authorizations").warns(
        "Server shop/web denies every request to port http of shop/web-0 and 1 pod more",
        remove_authorizations,
    ),
    check("policy-server-ports").warns(
        "Server shop/web: spec.port: Server by-number is older and selects the same port",
        |facts| {
            policy(facts, "Server")["metadata"]["creationTimestamp"] =
                json!("2026-01-01T00:00:00Z");
            add_policy(facts, json!({
                "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
                "metadata": {"name": "by-number", "namespace": "shop", "creationTimestamp": "2025-12-31T00:00:00Z"},
                "spec": {"podSelector": {}, "port": 8080, "accessPolicy": "all-authenticated"},
            }));
        },
    ),
    check("policy-servers").warns(
        "Server shop/vms: spec.externalWorkloadSelector: selects no ExternalWorkloads",
        |facts| add_external_server(facts, "vms", "other"),
    ),
    check("policy-authorizations").warns(
        "Server shop/vms denies every request to port 80 of ExternalWorkload shop/vm: its accessPolicy",
        |facts| {
            add_external_server(facts, "vms", "vm");
            remove_authorizations(facts);
            // Only the pods have a policy.
            policy(facts, "Server")["spec"]["accessPolicy"] = json!("audit");
        },
    ),
    check("policy-server-ports").warns(
        "Server shop/vms-2: spec.port: Server vms is older and selects the same port",
        |facts| {
            add_external_server(facts, "vms", "vm");
            add_external_server(facts, "vms-2", "vm");
        },
    ),
    check("repairs").warns(
        "node b: the agent made the program mesh-cni executable again: once in the last day, the last time 3 minutes ago (2025-12-31T23:56:40Z); /opt/cni/bin/mesh-cni",
        |facts| {
            repair(facts, RepairKind::PluginNotExecutable);
        },
    ),
    check("repairs").warns(
        "restored the caBundle of its registration, which was altered or removed: 3 times in the last day, the last time 10 minutes ago (2025-12-31T23:50:00Z)",
        |facts| {
            // Two replicas report two repairs and one.
            for (index, (times, at)) in [(2, NOW - 3600), (1, NOW - 600)].into_iter().enumerate() {
                let text = format!(
                    "mesh_injector_repairs_last_day{{found=\"ca-bundle-altered\"}} {times}\n\
                     mesh_injector_last_repair_timestamp_seconds{{found=\"ca-bundle-altered\"}} {at}\n\
                     mesh_injector_repairs_last_day{{found=\"certificate-missing\"}} 0\n"
                );
                facts.controllers[index].metrics = Ok(exposition::parse(&text));
            }
        },
    ),
    check("namespace-excluded").warns("excludes the injector by its label", |facts| {
        exclude_shop(facts);
        let reason = "no suitable namespace".to_owned();
        facts.webhook.dry_run = Ok(InjectionDryRun::NotAttempted(reason));
    }),
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
    let row = row(&facts, "repairs");
    assert_eq!(row.mark, Mark::Ok);
    assert_eq!(
        row.detail,
        ["enrolled 1 pod in place that started without the plugin"]
    );
}

fn without_injector(facts: &mut Facts, policy: &str) {
    edit_webhook(facts)["failurePolicy"] = json!(policy);
    scale_injector_to_zero(facts);
}

/// Makes a pod one of a Deployment by way of a ReplicaSet.
fn set_owner(pod: &mut Value, deployment: &str, hash: &str) {
    let replica_set = format!("{deployment}-{hash}");
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": "u"}]);
    pod["metadata"]["labels"]["pod-template-hash"] = json!(hash);
}

fn cannot_pull_proxy(facts: &mut Facts) {
    set_owner(&mut edit_pod(facts, "web-0"), "web", "5d9c");
    cannot_pull(facts, "web-0", "linkerd-proxy", "ErrImagePull");
}

fn make_node_unready(facts: &mut Facts) {
    edit(&mut facts.objects.nodes, "b")["status"]["conditions"] = json!([{
        "type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."
    }]);
}

fn exclude_shop(facts: &mut Facts) {
    let label = "config.linkerd.io/admission-webhooks";
    let mut namespace = edit(&mut facts.objects.namespaces, "shop");
    namespace["metadata"]["labels"] = json!({label: "disabled"});
    drop(namespace);
    edit_webhook(facts)["namespaceSelector"] =
        json!({"matchExpressions": [{"key": label, "operator": "NotIn", "values": ["disabled"]}]});
}

fn remove_authorizations(facts: &mut Facts) {
    let policies = facts.objects.policies.as_mut().unwrap();
    policies.retain(|object| object["kind"] != "AuthorizationPolicy");
}

#[test]
fn advice_has_the_names_of_objects() {
    let with = |inject: fn(&mut Facts), check: &str| {
        let mut facts = healthy();
        inject(&mut facts);
        row(&facts, check).advice
    };
    let excluded = with(exclude_shop, "namespace-excluded");
    assert_eq!(
        excluded,
        "kubectl label namespace shop config.linkerd.io/admission-webhooks-"
    );
    let image = with(cannot_pull_proxy, "data-plane-containers");
    assert!(
        image.starts_with("kubectl -n shop rollout undo deployment/web"),
        "{image}"
    );
    assert!(!image.contains(" logs "), "it has no log: {image}");
    let meshed = with(
        |facts| {
            pods(facts).push(pod("shop", "late-7f-x", "a", false));
            set_owner(&mut edit_pod(facts, "late-7f-x"), "late", "7f");
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
        row(&facts, "control-plane-deployments").advice
    };
    assert_eq!(upgrade(None), "meshctl upgrade | kubectl apply -f -");
    assert!(upgrade(Some("mesh")).starts_with("helm upgrade mesh CHART -n linkerd --reuse-values"));
}

/// The registration is correct, and deleting it would disable injection for the whole cluster.
#[test]
fn namespace_that_excludes_itself_does_not_fail_the_webhook() {
    let mut facts = healthy();
    exclude_shop(&mut facts);
    let namespace = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    facts.objects.namespaces.as_mut().unwrap().push(namespace);
    assert_eq!(row(&facts, "webhook-injects").mark, Mark::Ok);
    // The dry run uses another namespace.
    assert_eq!(dry_run_namespace(&facts).unwrap(), "default");
    facts.scope = Scope::Namespace("shop".to_owned());
    let reason = dry_run_namespace(&facts).unwrap_err();
    assert!(reason.contains("shop excludes the injector"), "{reason}");
    facts.webhook.dry_run = Ok(InjectionDryRun::NotAttempted(reason));
    assert_eq!(row(&facts, "webhook-injects").mark, Mark::Ok);
}

#[test]
fn dry_run_skips_namespace_that_is_being_deleted() {
    let mut facts = healthy();
    let mut namespace = edit(&mut facts.objects.namespaces, "shop");
    namespace["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    drop(namespace);
    assert_eq!(dry_run_namespace(&facts).unwrap(), "plain");
}

#[test]
fn missing_injector_with_policy_ignore_blocks_no_pods() {
    let mut facts = healthy();
    without_injector(&mut facts, "Ignore");
    assert_eq!(
        row(&facts, "control-plane-deployments").detail,
        ["Deployment linkerd-proxy-injector is scaled to 0"]
    );
}

#[test]
fn server_that_allows_clients_is_ok() {
    let mark = |change: fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        row(&facts, "policy-authorizations").mark
    };
    let for_namespace = mark(|facts| {
        let target = json!({"kind": "Namespace", "name": "shop"});
        policy(facts, "AuthorizationPolicy")["spec"]["targetRef"] = target;
    });
    assert_eq!(for_namespace, Mark::Ok);
    let open = mark(|facts| {
        remove_authorizations(facts);
        policy(facts, "Server")["spec"]["accessPolicy"] = json!("audit");
    });
    assert_eq!(open, Mark::Ok);
    let by_route = mark(|facts| {
        let target = json!({"group": "policy.linkerd.io", "kind": "HTTPRoute", "name": "get"});
        policy(facts, "AuthorizationPolicy")["spec"]["targetRef"] = target;
        add_route(facts, "web");
    });
    assert_eq!(by_route, Mark::Ok);
    let by_mistaken_route = mark(|facts| {
        let target = json!({"group": "policy.linkerd.io", "kind": "HTTPRoute", "name": "get"});
        policy(facts, "AuthorizationPolicy")["spec"]["targetRef"] = target;
        add_route(facts, "web");
        let with_port =
            json!({"group": "policy.linkerd.io", "kind": "Server", "name": "gone", "port": 80});
        let parents = &mut policy(facts, "HTTPRoute")["spec"]["parentRefs"];
        parents.as_array_mut().unwrap().push(with_port);
    });
    assert_ne!(by_mistaken_route, Mark::Ok);
    let unsatisfiable = mark(|facts| {
        let gone = json!([{"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "gone"}]);
        policy(facts, "AuthorizationPolicy")["spec"]["requiredAuthenticationRefs"] = gone;
    });
    assert_ne!(unsatisfiable, Mark::Ok);
}

#[test]
fn policies_apply_to_ipv6_that_is_redirected_or_absent() {
    let mark = |change: fn(&mut Facts)| {
        let mut facts = healthy();
        change(&mut facts);
        row(&facts, "policy-ip-families").mark
    };
    let redirected = mark(|facts| dual_stack(facts, "ipv4,ipv6", "deny"));
    assert_eq!(redirected, Mark::Ok);
    let by_init_container = mark(|facts| {
        dual_stack(facts, "ipv4,ipv6", "deny");
        edit_pod(facts, "web-0")["spec"]["initContainers"] =
            json!([{"name": "linkerd-init", "args": ["--ipv6=false"]}]);
    });
    assert_eq!(by_init_container, Mark::Fail);
    let without_policy = mark(|facts| {
        dual_stack(facts, "ipv4", "all-unauthenticated");
        let selector = json!({"matchLabels": {"app": "wbe"}});
        policy(facts, "Server")["spec"]["podSelector"] = selector;
    });
    assert_eq!(without_policy, Mark::Ok);
    let single_stack = mark(|facts| {
        dual_stack(facts, "ipv4", "deny");
        edit_pod(facts, "web-0")["status"]["podIPs"] = json!([{"ip": "10.1.0.5"}]);
    });
    assert_eq!(single_stack, Mark::Ok);
}

#[test]
fn bundles_are_compared_without_order_and_comments() {
    let (one, other) = (TestCa::new("a", 365).pem(), TestCa::new("b", 365).pem());
    let mut facts = healthy();
    let reordered = format!("# the new one\n{other}\n# the old one\n{one}");
    let bundle = format!("{one}{other}");
    facts.objects.trust_roots = Ok(vec![fixture::trust_roots("linkerd", &bundle)]);
    facts.objects.trust_bundle = Ok(Some(fixture::trust_bundle(fixture::NUMBERED, &bundle)));
    let mark = |facts: &mut Facts, own: &str| {
        let mut pod = edit_pod(facts, "web-1");
        mount_anchors(&mut pod);
        pod["spec"]["containers"][1]["env"] =
            json!([{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": own}]);
        drop(pod);
        row(facts, "l5d-identity-data-plane-proxies-certs-match-ca").mark
    };
    assert_eq!(mark(&mut facts, &reordered), Mark::Ok);
    assert_eq!(mark(&mut facts, &one), Mark::Warn);
}

/// As the Services tap and tap-injector of the viz extension.
#[test]
fn opaque_port_of_a_server_that_forwards_tls_needs_no_annotation_of_the_pod() {
    let mark = |protocol: &str| {
        let mut facts = healthy();
        edit(&mut facts.objects.services, "web")["metadata"]["annotations"] =
            json!({"config.linkerd.io/opaque-ports": "80"});
        policy(&mut facts, "Server")["spec"]["proxyProtocol"] = json!(protocol);
        row(&facts, "linkerd-opaque-ports-definition").mark
    };
    assert_eq!(mark("TLS"), Mark::Ok);
    assert_eq!(mark("opaque"), Mark::Ok);
    assert_eq!(mark("HTTP/1"), Mark::Warn);
}

#[test]
fn new_pods_are_excluded() {
    let reports = |created: &str| {
        let mut facts = healthy();
        edit_pod(&mut facts, "web-1")["metadata"]["creationTimestamp"] = json!(created);
        let pod = pods(&mut facts)
            .iter()
            .find(|pod| pod.name_any() == "web-1");
        let pod = pod.unwrap().clone();
        let new = facts.is_new(&pod);
        let mut proxies = facts.proxies.iter_mut();
        let proxy = proxies.find(|proxy| proxy.pod == "web-1").unwrap();
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
    assert_eq!(wrong_rows(&facts), ["nodes-ready"]);
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
    served(&mut facts).remove("linkerd.io/v1alpha2/ServiceProfile");
    set_value(
        &mut facts,
        "identityTrustDomain: cluster.local",
        "identityTrustDomain: other",
    );
    assert_eq!(row(&facts, "l5d-existence-crd").mark, Mark::Fail);
    assert_eq!(row(&facts, "config-drift").mark, Mark::Fail);
}
