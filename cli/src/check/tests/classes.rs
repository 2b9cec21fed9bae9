//! Faults of the classes that users' own objects and the rest of the cluster bring: each is named
//! by `check` alone, without `analyze`.

use mesh_core::exposition;
use serde_json::{Value, json};

use super::edits::{
    add_policy, edit, edit_pod, pods, policy, served, set_container, set_value, status,
    trust_old_anchors,
};
use super::faults::{Fault, check};
use super::fixture::{NOW, NUMBERED, TestCa, pod, trust_bundle};
use super::{Facts, healthy, row};
use crate::facts::InjectionDryRun;
use crate::facts::names::CERTIFICATE_EXPIRY;
use crate::facts::trust::NUMBER;
use crate::output::style::Mark;

const CONFIG: &str = "identityTrustDomain: cluster.local";

pub(super) const FAULTS: &[Fault] = &[
    check("cluster-dns").fails("kube-system/kube-dns has no ready endpoint", |facts| {
        facts.objects.system_slices.as_mut().unwrap()[0].endpoints.clear();
    }),
    check("kube-controllers").fails("kube-controller-manager renewed its lease 10 minutes ago", |facts| {
        let mut lease = edit(&mut facts.objects.leader_leases, "kube-controller-manager");
        lease["spec"]["renewTime"] = json!("2025-12-31T23:50:00.000000Z");
    }),
    check("workload-pods").fails(
        "Deployment shop/web cannot create its pods: pods \"web-1\" is forbidden: maximum cpu usage per Container is 100m",
        |facts| {
            let message = "pods \"web-1\" is forbidden: maximum cpu usage per Container is 100m, but limit is 1";
            workload(facts, "Deployment")["status"] = json!({"conditions": [
                {"type": "ReplicaFailure", "status": "True", "message": message}
            ]});
        },
    ),
    check("workload-pods").fails("DaemonSet shop/web cannot create its pods: rejected", |facts| {
        let workload = workload(facts, "Deployment");
        workload["kind"] = json!("DaemonSet");
        workload["status"] = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 2});
        let event = json!({
            "metadata": {}, "type": "Warning", "reason": "FailedCreate", "message": "rejected",
            "involvedObject": {"kind": "DaemonSet", "name": "web", "namespace": "shop"},
        });
        facts.objects.failed_creates = Ok(vec![serde_json::from_value(event).unwrap()]);
    }),
    check("config-annotations").warns("Deployment shop/web: config.linkerd.io/proxy-cpu-limit", |facts| {
        pods(facts).retain(|pod| pod.metadata.namespace.as_deref() != Some("shop"));
        workload(facts, "Deployment")["spec"]["template"]["metadata"]["annotations"] =
            json!({"config.linkerd.io/proxy-cpu-limit": "much"});
    }),
    check("config-annotations").warns(
        "metadata.annotations[linkerd.io/inject]: has no effect on a Deployment",
        |facts| {
            workload(facts, "Deployment")["metadata"]["annotations"] =
                json!({"linkerd.io/inject": "enabled"});
        },
    ),
    check("config-annotations").warns("retry.linkerd.io/limit", |facts| {
        edit(&mut facts.objects.services, "web")["metadata"]["annotations"] =
            json!({"retry.linkerd.io/limit": "many"});
    }),
    check("config-annotations").warns("neither \"consecutive\" nor \"unified\"", |facts| {
        edit(&mut facts.objects.services, "web")["metadata"]["annotations"] =
            json!({"balancer.linkerd.io/failure-accrual": "often"});
    }),
    check("pods-service-account-token").warns(
        "shop/plain has the injection annotation but no proxy: automountServiceAccountToken is false",
        |facts| {
            let values = format!("{CONFIG}\nidentity: {{serviceAccountTokenProjection: false}}");
            set_value(facts, CONFIG, &values);
            pods(facts).push(pod("shop", "plain", "a", false));
            edit_pod(facts, "plain")["spec"]["automountServiceAccountToken"] = json!(false);
        },
    ),
    check("pods-marked-meshed").fails(
        "plain/batch has the annotation linkerd.io/proxy-version",
        |facts| {
            edit_pod(facts, "batch")["metadata"]["annotations"] =
                json!({"linkerd.io/proxy-version": "1"});
        },
    ),
    check("policy-accounts").warns("there is no ServiceAccount shop/clients", |facts| {
        let identities = ["clients.shop.serviceaccount.identity.linkerd.cluster.local"];
        policy(facts, "MeshTLSAuthentication")["spec"]["identities"] =
            json!(identities);
    }),
    check("policy-accounts").warns("there is no ServiceAccount shop/other", |facts| {
        policy(facts, "MeshTLSAuthentication")["spec"] =
            json!({"identityRefs": [{"kind": "ServiceAccount", "name": "other"}]});
    }),
    check("service-ports").warns("declares TCP port 9090, though they have others", |facts| {
        edit(&mut facts.objects.services, "web")["spec"]["ports"][0]["targetPort"] = json!(9090);
    }),
    check("service-ports").warns("a TCP port with the name \"grpc\"", |facts| {
        edit(&mut facts.objects.services, "web")["spec"]["ports"][0]["targetPort"] = json!("grpc");
    }),
    check("service-ports").warns("selects no pods of namespace shop", |facts| {
        edit(&mut facts.objects.services, "web")["spec"]["selector"] = json!({"app": "wep"});
    }),
    check("policy-effects").warns("ServiceProfile shop/web.shop.svc.cluster.local has routes", |facts| {
        add_policy(facts, service_route(json!([{}])));
        add_policy(facts, json!({
            "apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
            "metadata": {"name": "web.shop.svc.cluster.local", "namespace": "shop"},
            "spec": {"routes": [{"name": "all", "condition": {"pathRegex": "/.*"}}]},
        }));
    }),
    check("policy-references").fails("there is no Service shop/canary", |facts| {
        add_policy(facts, service_route(json!([{"backendRefs": [{"name": "canary", "port": 80}]}])));
    }),
    check("policy-references").fails("Service shop/web has no port 81; it has 80", |facts| {
        let mut route = service_route(json!([{}]));
        route["spec"]["parentRefs"][0]["port"] = json!(81);
        add_policy(facts, route);
    }),
    check("policy-servers").warns("has a TCP port with the name \"grpc\"", |facts| {
        policy(facts, "Server")["spec"]["port"] = json!("grpc");
    }),
    check("anchors-may-sign").warns("is not a CA certificate", |facts| {
        let (leaf, _) = TestCa::new("other", 365).server("leaf", 365);
        facts.trust.anchors.as_mut().unwrap().push(leaf);
    }),
    check("l5d-identity-issuer-cert-issued-by-trust-anchor").fails(
        "but CN=intermediate did, which is neither an anchor nor in its file",
        |facts| {
            let intermediate = TestCa::new("intermediate", 365);
            facts.trust.issuer = Ok(vec![intermediate.intermediate("issuer", 365)]);
        },
    ),
    check("l5d-identity-data-plane-proxies-certs-match-ca").warns(
        "shop/web-0 has trust anchors with the number 1767200000, but the identity service sends number 1767218400",
        |facts| set_number(facts, "web-0", 1_767_200_000),
    ),
    check("l5d-identity-data-plane-proxies-certs-match-ca").warns(
        "shop/web-0 has trust anchors with the number 1767220000 and refuses those of the identity service",
        |facts| set_number(facts, "web-0", 1_767_220_000),
    ),
    check("l5d-identity-data-plane-proxies-certs-match-ca").warns(
        "shop/web-0 has received no trust anchors from the identity service",
        |facts| {
            set_number(facts, "web-0", 0);
            trust_old_anchors(&mut edit_pod(facts, "web-0"));
        },
    ),
    check("l5d-identity-data-plane-proxies-certs-match-ca").warns(
        "the identity service sends other trust anchors than ConfigMap linkerd-identity-trust-roots has",
        |facts| {
            let other = TestCa::new("other", 365).pem();
            facts.objects.trust_bundle = Ok(Some(trust_bundle(NUMBERED, &other)));
        },
    ),
    check("status-writer").warns("its holder linkerd-destination-9 does not exist", |facts| {
        let mut lease = edit(&mut facts.objects.leader_leases, "policy-controller-write");
        lease["spec"] = json!({
            "holderIdentity": "linkerd-destination-9", "renewTime": "2025-12-31T23:50:00.000000Z",
        });
    }),
    check("endpoint-writer").warns(
        "its holder linkerd-destination-0 does not renew it: EndpointSlices of ExternalWorkloads are out of date",
        |facts| {
            let mut lease = edit(&mut facts.objects.leader_leases, "linkerd-destination-endpoint-write");
            lease["spec"] = json!({
                "holderIdentity": "linkerd-destination-0",
                "renewTime": "2025-12-31T23:50:00.000000Z",
            });
        },
    ),
    check("extension-namespaces").warns("namespaces plain, shop are all labelled as extension viz", |facts| {
        for name in ["plain", "shop"] {
            edit(&mut facts.objects.namespaces, name)["metadata"]["labels"] =
                json!({"linkerd.io/extension": "viz"});
        }
    }),
    check("control-plane-endpoints").fails("its selector app=other matches no pod", |facts| {
        facts.objects.slices.as_mut().unwrap().retain(|slice| {
            slice.metadata.name.as_deref() != Some("linkerd-policy-1")
        });
        edit(&mut facts.objects.services, "linkerd-policy")["spec"]["selector"] =
            json!({"app": "other"});
    }),
    check("agent-ready").fails("the node affinity of DaemonSet mesh-agent excludes it", |facts| {
        let terms = json!([{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["a"]}
        ]}]);
        edit(&mut facts.objects.daemon_sets, "mesh-agent")["spec"]["template"]["spec"]["affinity"] = json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        });
        pods(facts).retain(|pod| pod.metadata.name.as_deref() != Some("mesh-agent-b"));
    }),
    check("agent-cni").fails("cannot read 05-broken.conflist", |facts| {
        let cni = status(facts, 0).cni.as_mut().unwrap();
        cni.chained = false;
        cni.file = None;
        cni.reason = "cannot read 05-broken.conflist: expected a value".to_owned();
    }),
    check("webhook-injects").fails("failed calling webhook \"check.example.com\"", |facts| {
        let reason = "Internal error occurred: failed calling webhook \"check.example.com\": timeout";
        facts.webhook.dry_run = Ok(InjectionDryRun::Rejected(reason.to_owned()));
    }),
    check("repairs").warns("which was for another name", |facts| {
        let text = format!(
            "mesh_injector_repairs_last_day{{found=\"certificate-misnamed\"}} 1\n\
             mesh_injector_last_repair_timestamp_seconds{{found=\"certificate-misnamed\"}} {NOW}\n"
        );
        facts.controllers[3].metrics = Ok(exposition::parse(&text));
    }),
];

/// Sets the number of the trust anchors of a proxy.
fn set_number(facts: &mut Facts, pod: &str, number: u64) {
    let mut proxies = facts.proxies.iter_mut();
    let proxy = proxies.find(|proxy| proxy.pod == pod).unwrap();
    let text = format!("{CERTIFICATE_EXPIRY} {}\n{NUMBER} {number}\n", NOW + 3600);
    proxy.metrics = Ok(exposition::parse(&text));
}

/// The numbers of proxies and identity service differ for minutes after an installation and during
/// a rotation; a container that has just started has not received any yet.
#[test]
fn trust_anchors_that_may_still_be_on_their_way_are_ok() {
    let id = "l5d-identity-data-plane-proxies-certs-match-ca";
    let pem = |facts: &Facts| {
        let map = &facts.objects.trust_roots.as_ref().unwrap()[0];
        map.data.as_ref().unwrap()["ca-bundle.crt"].clone()
    };
    let mut changed = healthy();
    let bundle = trust_bundle(NOW - 90, &pem(&changed));
    changed.objects.trust_bundle = Ok(Some(bundle));
    let mut started = healthy();
    set_number(&mut started, "web-0", 0);
    trust_old_anchors(&mut edit_pod(&mut started, "web-0"));
    let state = json!({"ready": true, "state": {"running": {"startedAt": "2025-12-31T23:59:30Z"}}});
    set_container(&mut started, "web-0", "linkerd-proxy", state);
    // The anchors of the environment are the current ones.
    let mut never = healthy();
    set_number(&mut never, "web-0", 0);
    let mut unnumbered = healthy();
    unnumbered.objects.trust_bundle = Ok(None);
    for facts in [changed, started, never, unnumbered] {
        let row = row(&facts, id);
        assert_eq!(row.mark, Mark::Ok, "{:?}", row.detail);
    }
}

/// Returns a workload of the shop.
fn workload<'a>(facts: &'a mut Facts, kind: &str) -> &'a mut Value {
    let mut all = facts.objects.workloads.as_mut().unwrap().iter_mut();
    all.find(|object| object["kind"] == kind).unwrap()
}

/// Returns an HTTPRoute of Service `web` with rules.
fn service_route(rules: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "parentRefs": [{"group": "core", "kind": "Service", "name": "web", "port": 80}],
            "rules": rules,
        },
    })
}

/// Its missing pods are reported by other rows.
#[test]
fn servers_of_the_control_plane_follow_from_its_own_faults() {
    let mut facts = healthy();
    let server = json!({
        "apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
        "metadata": {"name": "admin", "namespace": "linkerd"},
        "spec": {"podSelector": {"matchLabels": {"app": "none"}}, "port": 80},
    });
    add_policy(&mut facts, server);
    assert_eq!(row(&facts, "policy-servers").mark, Mark::Ok);
}

/// The advice is about the obstacle, not about the injector.
#[test]
fn advice_names_the_obstacle_of_rejected_pods() {
    for (reason, expect) in [
        (
            "failed calling webhook \"check.example.com\": timeout",
            "grep check.example.com",
        ),
        (
            "pods \"x\" is forbidden: minimum memory usage per Container is 1Gi, but request is 1Mi",
            "describe limitrange",
        ),
    ] {
        let mut facts = healthy();
        facts.webhook.dry_run = Ok(InjectionDryRun::Rejected(reason.to_owned()));
        let row = row(&facts, "webhook-injects");
        assert!(row.advice.contains(expect), "{}", row.advice);
        assert!(!row.advice.contains("8443"), "{}", row.advice);
    }
}

/// As long as the namespace excludes the injector, a new pod gets no proxy either.
#[test]
fn advice_for_pod_in_excluded_namespace_begins_with_the_label() {
    let mut facts = healthy();
    edit(&mut facts.objects.namespaces, "shop")["metadata"]["labels"] =
        json!({"config.linkerd.io/admission-webhooks": "disabled"});
    pods(&mut facts).push(pod("shop", "plain", "a", false));
    let row = row(&facts, "pods-meshed");
    let expect = "kubectl label namespace shop config.linkerd.io/admission-webhooks- first";
    assert!(
        row.fixes.iter().any(|fix| fix.contains(expect)),
        "{:?}",
        row.fixes
    );
}

#[test]
fn expiry_has_days_and_date() {
    let mut facts = healthy();
    let anchor = TestCa::new("root", 3650);
    facts.trust.issuer = Ok(vec![anchor.intermediate("issuer", 20)]);
    facts.trust.anchors = Ok(vec![anchor.der()]);
    let row = row(&facts, "l5d-identity-issuer-cert-not-expiring-soon");
    assert_eq!(row.mark, Mark::Warn);
    assert!(
        row.detail[0].contains("expires in 20 days, on 2026-01-21"),
        "{:?}",
        row.detail
    );
}

/// The record of a controller begins with its process, so that "nothing" would say too much.
#[test]
fn repairs_before_the_start_of_a_controller_are_not_denied() {
    let mut facts = healthy();
    let metrics = |started: u64| {
        exposition::parse(&format!(
            "mesh_injector_repairs_last_day{{found=\"ca-bundle-altered\"}} 0\nprocess_start_time_seconds {started}\n"
        ))
    };
    facts.controllers[3].metrics = Ok(metrics(NOW - 600));
    let detail = row(&facts, "repairs").detail.join("");
    assert!(detail.contains("started 10 minutes ago"), "{detail}");
    facts.controllers[3].metrics = Ok(metrics(NOW - 2 * 24 * 3600));
    assert_eq!(row(&facts, "repairs").detail.join(""), "");
}

/// An object of a kind that is not served cannot be created.
#[test]
fn missing_definition_is_named_instead_of_the_object() {
    let mut facts = healthy();
    served(&mut facts).retain(|kind| !kind.ends_with("/Server"));
    facts
        .objects
        .policies
        .as_mut()
        .unwrap()
        .retain(|object| object["kind"] != "Server");
    let row = row(&facts, "policy-references");
    let expect = "the cluster has no definition of Server: meshctl install --crds";
    let all = format!("{:?} {:?}", row.fixes, row.detail);
    assert!(
        row.cause == Some("l5d-existence-crd") || all.contains(expect),
        "{all}"
    );
}
