//! A fault has one root cause, however many rows fail.

use mesh_k8s::kinds::ResourceExt;

use super::super::{CATEGORIES, root_cause};
use super::edits::{
    cannot_pull, cannot_schedule, enforce_restricted, not_ready, remove_pods,
    scale_injector_to_zero, set_scheduled,
};
use super::fixture::{self, NOW, TestCa};
use super::{all_rows, evaluate, find, healthy, row};
use crate::facts::{Facts, InjectionDryRun};
use crate::output::style::Mark;

/// Returns the rows that are not OK, each with its root cause.
fn roots(facts: &Facts) -> Vec<(&'static str, Option<&'static str>)> {
    let wrong = all_rows(facts)
        .into_iter()
        .filter(|row| row.mark.is_problem());
    wrong.map(|row| (row.name, row.cause)).collect()
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
    for proxy in &mut facts.proxies {
        proxy.ready = Err("answers 503: waiting for a certificate".to_owned());
        proxy.metrics = Ok(fixture::expiry(NOW - 1));
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
    scale_injector_to_zero(&mut facts);
    facts.objects.slices.as_mut().unwrap()[3].endpoints.clear();
    facts.webhook.presented.clear();
    facts.webhook.dry_run = Ok(InjectionDryRun::NotInjected);
    assert_one_root(&facts, "control-plane-deployments", 6);
}

#[test]
fn pod_security_that_rejects_agents_is_one_root_cause() {
    let mut facts = healthy();
    enforce_restricted(&mut facts);
    remove_pods(&mut facts, "mesh-agent");
    facts.agents.clear();
    set_scheduled(&mut facts, 0);
    assert_one_root(&facts, "pre-pod-security", 3);
}

#[test]
fn failed_container_explains_unready_pod() {
    let mut facts = healthy();
    for number in 0..2 {
        let name = format!("linkerd-destination-{number}");
        not_ready(&mut facts, &name);
        cannot_pull(&mut facts, &name, "destination", "ErrImagePull");
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
    services.retain(|service| service.name_any() != "linkerd-policy");
    let row = row(&facts, "control-plane-endpoints");
    assert_eq!((row.mark, row.cause), (Mark::Fail, None));
}

/// An unschedulable pod breaks nothing while another replica is ready.
#[test]
fn warning_explains_warnings_but_no_failures() {
    let mut facts = healthy();
    cannot_schedule(&mut facts, "Insufficient cpu");
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
