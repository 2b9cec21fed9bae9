//! A fault has one root cause, however many rows fail.

use serde_json::json;

use super::super::facts::InjectionDryRun;
use super::super::fixture::{NOW, TestCa};
use super::super::{CATEGORIES, Facts, Mark, root_cause};
use super::faults::{change_pod, not_ready};
use super::{evaluate, find, healthy};
use crate::clients::metrics;

/// Returns the rows that are not OK, each with its root cause.
fn roots(facts: &Facts) -> Vec<(&'static str, Option<&'static str>)> {
    let reports = evaluate(facts);
    let all = reports.iter().flat_map(|category| &category.checks);
    all.filter(|report| report.mark != Mark::Ok)
        .map(|report| (report.name, report.cause))
        .collect()
}

/// Asserts that all rows but `cause` are consequences of it.
fn assert_one_root(facts: &Facts, cause: &'static str, rows: usize) {
    let roots = roots(facts);
    assert_eq!(roots.len(), rows, "{roots:?}");
    for (name, root) in &roots {
        let expect = (*name != cause).then_some(cause);
        assert_eq!(*root, expect, "{name} in {roots:?}");
    }
}

/// The state a day after the issuer expired: no proxy has a certificate and is ready, and no
/// Service has ready endpoints.
fn stop_issuing(facts: &mut Facts) {
    let expired = "control_identity_cert_expiration_timestamp_seconds 1767225599\n";
    for proxy in &mut facts.proxies {
        proxy.ready = Err("answers 503: waiting for a certificate".to_owned());
        proxy.metrics = Ok(metrics::parse(expired));
    }
    for component in ["identity", "destination", "proxy-injector"] {
        for number in 0..2 {
            not_ready(facts, &format!("linkerd-{component}-{number}"));
        }
    }
    for slice in facts.objects.slices.as_mut().unwrap() {
        slice.endpoints.clear();
    }
    facts.controllers[3].ready = Err("answers 503: waiting for its certificate".to_owned());
    facts.webhook.presented.clear();
    facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
}

#[test]
fn expired_issuer_is_one_root_cause() {
    let mut facts = healthy();
    let anchor = TestCa::new("root", 365);
    facts.trust.anchors = Ok(vec![anchor.der()]);
    facts.trust.issuer = Ok(vec![anchor.intermediate("identity", -1)]);
    stop_issuing(&mut facts);
    assert_one_root(&facts, "l5d-identity-issuer-cert-is-time-valid", 9);
    assert_eq!(facts.now, NOW);
}

#[test]
fn issuer_that_may_not_sign_is_one_root_cause() {
    let mut facts = healthy();
    let anchor = TestCa::new("root", 365);
    facts.trust.anchors = Ok(vec![anchor.der()]);
    facts.trust.issuer = Ok(vec![anchor.without_signing("identity", 300)]);
    stop_issuing(&mut facts);
    assert_one_root(&facts, "issuer-may-sign", 9);
}

#[test]
fn injector_scaled_to_zero_is_one_root_cause() {
    let mut facts = healthy();
    let deployment = &mut facts.objects.deployments.as_mut().unwrap()[2];
    deployment.spec.as_mut().unwrap().replicas = Some(0);
    let pods = facts.objects.pods.as_mut().unwrap();
    pods.retain(|pod| {
        let name = pod.metadata.name.as_deref().unwrap();
        !name.starts_with("linkerd-proxy-injector")
    });
    facts.objects.slices.as_mut().unwrap()[3].endpoints.clear();
    facts.webhook.presented.clear();
    facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
    assert_one_root(&facts, "control-plane-deployments", 6);
}

#[test]
fn pod_security_that_rejects_agents_is_one_root_cause() {
    let mut facts = healthy();
    let namespace = &mut facts.objects.namespaces.as_mut().unwrap()[0];
    let labels = namespace.metadata.labels.as_mut().unwrap();
    labels.insert(
        "pod-security.kubernetes.io/enforce".to_owned(),
        "restricted".to_owned(),
    );
    let pods = facts.objects.pods.as_mut().unwrap();
    pods.retain(|pod| {
        !pod.metadata
            .name
            .as_deref()
            .unwrap()
            .starts_with("mesh-agent")
    });
    facts.agents.clear();
    let set = &mut facts.objects.daemon_sets.as_mut().unwrap()[0];
    let status = json!({
        "currentNumberScheduled": 0, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 0
    });
    set.status = serde_json::from_value(status).unwrap();
    assert_one_root(&facts, "pre-pod-security", 3);
}

#[test]
fn failed_container_explains_unready_pod() {
    let mut facts = healthy();
    for number in 0..2 {
        let name = format!("linkerd-destination-{number}");
        not_ready(&mut facts, &name);
        change_pod(&mut facts, &name, |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "destination", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
            }]);
        });
    }
    facts.objects.slices.as_mut().unwrap()[1].endpoints.clear();
    assert_one_root(&facts, "control-plane-containers", 3);
}

/// A missing Service is a root cause even if another check could explain the row.
#[test]
fn finding_marked_into_root_cause_is_not_a_consequence() {
    let mut facts = healthy();
    not_ready(&mut facts, "linkerd-destination-0");
    not_ready(&mut facts, "linkerd-destination-1");
    let services = facts.objects.services.as_mut().unwrap();
    services.retain(|service| service.metadata.name.as_deref() != Some("linkerd-policy"));
    let reports = evaluate(&facts);
    let row = find(&reports, "control-plane-endpoints").unwrap();
    assert_eq!((row.mark, row.cause), (Mark::Fail, None));
}

/// An unschedulable pod breaks nothing while another replica is ready.
#[test]
fn warning_explains_warnings_but_no_failures() {
    let mut facts = healthy();
    change_pod(&mut facts, "linkerd-identity-1", |pod| {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"
        }]);
    });
    facts.controllers[2].ready = Err("answers 503: waiting for servers".to_owned());
    let reports = evaluate(&facts);
    assert_eq!(find(&reports, "controllers-ready").unwrap().cause, None);
    // It explains the warning about the pod itself.
    let ready = find(&reports, "l5d-api-control-ready").unwrap();
    assert_eq!(ready.cause, Some("l5d-existence-unschedulable-pods"));
}

/// Every cause is a check, and explanations have no cycle.
#[test]
fn causes_exist_and_have_no_cycle() {
    for check in CATEGORIES.iter().flat_map(|category| category.checks) {
        let mut reached = vec![check.id];
        let mut next = 0;
        while let Some(name) = reached.get(next).copied() {
            let found = root_cause::check(name);
            let found = found.unwrap_or_else(|| panic!("{}: {name} is not a check", check.id));
            for cause in found.explained_by.iter().copied().flatten() {
                assert_ne!(*cause, check.id, "through {name}");
                if !reached.contains(cause) {
                    reached.push(cause);
                }
            }
            next += 1;
        }
    }
}
