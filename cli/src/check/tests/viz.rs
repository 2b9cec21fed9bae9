//! Faults of the viz extension.

use serde_json::json;

use super::edits::{edit, edit_pod, pods, remove_pods};
use super::faults::{Fault, check};
use super::fixture::viz::{add_viz, set_api_service_bundle};
use super::fixture::{NOW, TestCa, pod};
use crate::facts::{Facts, Mode};

/// Removes a Deployment of the extension.
fn remove_deployment(facts: &mut Facts, name: &str) {
    let deployments = facts.viz.deployments.as_mut().unwrap();
    deployments.retain(|it| it.metadata.name.as_deref() != Some(name));
}

pub(super) const FAULTS: &[Fault] = &[
    check("l5d-viz-ns-exists").fails("no namespace has the label", |facts| {
        add_viz(facts);
        facts.viz.namespace = Err("no namespace has the label linkerd.io/extension=viz".into());
    }),
    check("l5d-viz-cr-exists").fails("ClusterRole linkerd-linkerd-viz-tap is missing", |facts| {
        add_viz(facts);
        let roles = facts.viz.cluster_roles.as_mut().unwrap();
        roles.remove("linkerd-linkerd-viz-tap");
    }),
    check("l5d-viz-crb-exists").fails("linkerd-linkerd-viz-prometheus is missing", |facts| {
        add_viz(facts);
        let bindings = facts.viz.cluster_role_bindings.as_mut().unwrap();
        bindings.remove("linkerd-linkerd-viz-prometheus");
    }),
    check("l5d-viz-pods-injection").warns("linkerd-viz/tap-0 has no proxy", |facts| {
        add_viz(facts);
        remove_pods(facts, "tap-0");
        pods(facts).push(pod("linkerd-viz", "tap-0", "a", false));
    }),
    check("l5d-viz-pods-running").fails("Deployment tap-injector is missing", |facts| {
        add_viz(facts);
        remove_deployment(facts, "tap-injector");
    }),
    check("l5d-viz-pods-running").fails("Deployment tap has no replicas", |facts| {
        add_viz(facts);
        edit(&mut facts.viz.deployments, "tap")["spec"]["replicas"] = json!(0);
    }),
    check("l5d-viz-proxy-healthy").warns("is not ready", |facts| {
        add_viz(facts);
        edit_pod(facts, "tap-0")["status"]["containerStatuses"][1]["ready"] = json!(false);
    }),
    check("l5d-viz-proxy-cp-version").warns("has version v0, the control plane", |facts| {
        add_viz(facts);
        edit_pod(facts, "tap-0")["spec"]["containers"][1]["image"] = json!("mesh/proxy:v0");
    }),
    check("l5d-viz-cli-version").warns("tap has version v0", |facts| {
        add_viz(facts);
        let mut tap = edit(&mut facts.viz.deployments, "tap");
        tap["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mesh/viz:v0");
    }),
    check("l5d-tap-cert-valid").fails("is not accepted by the APIService's caBundle", |facts| {
        add_viz(facts);
        set_api_service_bundle(facts, &TestCa::new("other", 365).pem());
    }),
    check("l5d-tap-cert-valid").fails("v1alpha1.tap.linkerd.io has no caBundle", |facts| {
        add_viz(facts);
        set_api_service_bundle(facts, "");
    }),
    check("l5d-tap-cert-valid").fails("is missing: requests cannot be tapped", |facts| {
        add_viz(facts);
        facts.viz.api_service = Ok(None);
    }),
    check("l5d-tap-cert-valid").fails("expired", |facts| {
        add_viz(facts);
        facts.now = NOW + 366 * 24 * 3600;
    }),
    check("l5d-tap-cert-not-expiring-soon").warns("expires", |facts| {
        add_viz(facts);
        facts.now = NOW + 350 * 24 * 3600;
    }),
    check("l5d-tap-api").warns("no response", |facts| {
        add_viz(facts);
        let service = facts.viz.api_service.as_mut().unwrap().as_mut().unwrap();
        service.data["status"] = json!({
            "conditions": [{"type": "Available", "status": "False", "message": "no response"}],
        });
    }),
    check("viz-tap-injector-cert-valid").fails("new pods cannot be tapped", |facts| {
        add_viz(facts);
        facts.viz.webhook = Ok(None);
    }),
    check("viz-tap-injector-cert-valid").fails("Secret tap-injector-k8s-tls is missing", |facts| {
        add_viz(facts);
        facts.viz.injector_secret = Ok(None);
    }),
    check("l5d-viz-prometheus").warns("there are no statistics", |facts| {
        add_viz(facts);
        remove_deployment(facts, "prometheus");
    }),
    check("l5d-viz-metrics-api").fails("can talk to Prometheus: connection refused", |facts| {
        add_viz(facts);
        let checks = facts.viz.self_checks.as_mut().unwrap();
        checks[0].problem = Some("connection refused".into());
    }),
    check("l5d-viz-data-plane-prom-authz").warns("namespace shop denies scrapes", |facts| {
        add_viz(facts);
        edit_pod(facts, "web-0")["metadata"]["annotations"]["config.linkerd.io/default-inbound-policy"] = json!("deny");
    }),
    check("l5d-data-plane-prom").warns("no series of shop/web-1", |facts| {
        add_viz(facts);
        facts.viz.scraped.as_mut().unwrap().remove("shop/web-1");
    }),
    check("viz-tap-enabled").warns("shop/web-0 was created before the extension", |facts| {
        add_viz(facts);
        edit_pod(facts, "web-0")["metadata"]["annotations"] = json!({});
    }),
];

#[test]
fn all_checks_of_a_healthy_extension_pass() {
    let mut facts = super::healthy();
    add_viz(&mut facts);
    assert_eq!(facts.mode, Mode::Viz { proxies: true });
    let rows = super::all_rows(&facts);
    assert!(rows.len() > 15, "{}", rows.len());
    for row in rows {
        assert_eq!(row.mark, super::Mark::Ok, "{}: {:?}", row.name, row.detail);
    }
}

/// The injector writes the annotation of a namespace to new pods. The policy controller reads only
/// the annotation of the pod.
#[test]
fn annotation_of_a_namespace_is_not_the_policy_of_older_pods() {
    let mut facts = super::healthy();
    add_viz(&mut facts);
    let annotations = json!({"config.linkerd.io/default-inbound-policy": "deny"});
    edit(&mut facts.objects.namespaces, "shop")["metadata"]["annotations"] = annotations;
    assert_eq!(super::wrong_rows(&facts), Vec::<&str>::new());
}

/// A Prometheus of the user needs no objects of the extension's own.
#[test]
fn external_prometheus_replaces_own() {
    let mut facts = super::healthy();
    add_viz(&mut facts);
    remove_deployment(&mut facts, "prometheus");
    facts.viz.external_prometheus = Some("http://prometheus.monitoring:9090".into());
    for objects in [
        &mut facts.viz.cluster_roles,
        &mut facts.viz.cluster_role_bindings,
    ] {
        objects
            .as_mut()
            .unwrap()
            .remove("linkerd-linkerd-viz-prometheus");
    }
    assert_eq!(super::wrong_rows(&facts), Vec::<&str>::new());
}
