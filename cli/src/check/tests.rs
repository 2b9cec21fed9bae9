//! All checks pass on a healthy cluster, and each reports an injected fault.

use std::collections::BTreeSet;

use mesh_core::exposition;
use serde_json::json;

use self::fixture::healthy;
use super::*;
use edits::{container_status, edit_pod, not_ready, pre};
use faults::{FAULTS, Fault};

mod agreement;
mod cert_manager;
mod classes;
mod consequences;
mod edits;
mod faults;
mod fixture;
mod multicluster;
mod objects;
mod planted;
mod rotation;
mod trust_bundles;
mod units;
mod unlisted;
mod viz;

/// Returns all faults.
fn all_faults() -> impl Iterator<Item = &'static Fault> {
    let all = [
        FAULTS,
        objects::FAULTS,
        planted::FAULTS,
        unlisted::FAULTS,
        classes::FAULTS,
        viz::FAULTS,
        multicluster::FAULTS,
        rotation::FAULTS,
        trust_bundles::FAULTS,
        units::FAULTS,
        cert_manager::FAULTS,
    ];
    all.into_iter().flatten()
}

/// Returns the rows of all checks that ran.
fn all_rows(facts: &Facts) -> Vec<Report> {
    let categories = evaluate(facts).into_iter();
    categories.flat_map(|category| category.checks).collect()
}

/// Returns the row of a check that ran.
fn row(facts: &Facts, check: &str) -> Report {
    let mut rows = all_rows(facts).into_iter();
    rows.find(|row| row.name == check).unwrap()
}

/// Asserts that the advice about the fault with each message contains a text.
fn expect_advice(faults: &[Fault], expected: &[(&str, &str)]) {
    for (message, expect) in expected {
        let mut faults = faults.iter();
        let fault = faults.find(|it| it.message.contains(message)).unwrap();
        let mut facts = healthy();
        (fault.inject)(&mut facts);
        let advice = row(&facts, fault.check).advice;
        assert!(advice.contains(expect), "{advice}");
    }
}

/// Returns the checks that are not OK.
fn wrong_rows(facts: &Facts) -> Vec<&'static str> {
    let wrong = all_rows(facts)
        .into_iter()
        .filter(|row| row.mark.is_problem());
    wrong.map(|row| row.name).collect()
}

fn find<'a>(reports: &'a [CategoryReport], check: &str) -> Option<&'a Report> {
    rows(reports).find(|report| report.name == check)
}

#[test]
fn all_checks_pass_on_a_healthy_cluster() {
    let installed = healthy();
    let mut before = healthy();
    pre(&mut before);
    for row in all_rows(&installed).into_iter().chain(all_rows(&before)) {
        assert_eq!(row.mark, Mark::Ok, "{}: {:?}", row.name, row.detail);
    }
}

#[test]
fn every_fault_is_reported_into_root_cause() {
    let mut unreported = Vec::new();
    for fault in all_faults() {
        let mut facts = healthy();
        (fault.inject)(&mut facts);
        let reports = evaluate(&facts);
        let report = find(&reports, fault.check)
            .unwrap_or_else(|| panic!("{}: the check did not run", fault.check));
        let detail = report.detail.join("\n");
        if (report.mark, report.cause) != (fault.mark, None) || !detail.contains(fault.message) {
            let (mark, cause) = (report.mark, report.cause);
            unreported.push(format!(
                "{}: {:?} expected; {mark:?} because of {cause:?}: {detail}",
                fault.check, fault.message
            ));
            continue;
        }
        assert!(!report.advice.is_empty() && !report.hint.is_empty());
        for placeholder in ["{ns}", "{upgrade}"] {
            assert!(!report.advice.contains(placeholder), "{}", report.advice);
        }
        let failed = rows(&reports).any(|report| report.mark == Mark::Fail);
        assert_eq!(success(&reports), !failed);
    }
    assert!(unreported.is_empty(), "{}", unreported.join("\n\n"));
}

#[test]
fn every_check_has_a_fault() {
    let with_fault: BTreeSet<&str> = all_faults().map(|fault| fault.check).collect();
    let checks: BTreeSet<&str> = check_ids().into_iter().collect();
    assert_eq!(with_fault, checks);
}

/// A user without access to Secrets still gets all other results.
#[test]
fn unreadable_fact_is_reported_and_others_are_checked() {
    let mut facts = healthy();
    facts.objects.webhook_secret = Err("cannot read the injector's Secret: forbidden".to_owned());
    let invalid = row(&facts, "l5d-proxy-injector-webhook-cert-valid");
    assert_eq!(
        invalid.detail,
        ["cannot read the injector's Secret: forbidden"]
    );
    assert_eq!(row(&facts, "webhook-injects").mark, Mark::Ok);
}

/// Ten checks use the missing ConfigMap.
#[test]
fn missing_fact_is_reported_once() {
    let mut facts = healthy();
    facts.objects.config = Ok(None);
    assert_eq!(wrong_rows(&facts), ["l5d-existence-linkerd-config"]);
    let rows = all_rows(&facts);
    // Without values the category of high availability does not apply.
    assert_eq!(
        rows.len(),
        all_rows(&healthy()).len() - 1,
        "no row vanishes"
    );
    let skipped: Vec<&Report> = rows.iter().filter(|row| row.mark == Mark::Skip).collect();
    assert!(skipped.len() > 10, "{skipped:?}");
    for id in [
        "policy-identities",
        "policy-default-deny",
        "pods-grace-period",
    ] {
        assert!(skipped.iter().any(|row| row.name == id), "{id}");
    }
    for row in skipped {
        assert_eq!(
            (row.result, row.cause),
            ("skipped", Some("l5d-existence-linkerd-config"))
        );
        assert!(row.detail[0].contains("ConfigMap"), "{:?}", row.detail);
    }
}

/// Such as GRPCRoute without the Gateway API.
#[test]
fn unserved_kind_need_not_be_synced() {
    let mut facts = healthy();
    let text =
        "source_kind_served{kind=\"GrpcRoute\"} 0\nsource_kind_synced{kind=\"GrpcRoute\"} 0\n";
    facts.controllers[1].metrics = Ok(exposition::parse(text));
    assert_eq!(row(&facts, "controllers-follow").mark, Mark::Ok);
}

/// A restart of the controller would lose them.
#[test]
fn kind_that_is_no_longer_served_is_reported_while_its_objects_are_kept() {
    let mut facts = healthy();
    let text = "source_kind_served{kind=\"Server\"} 0\nsource_kind_synced{kind=\"Server\"} 0\nsource_kind_objects{kind=\"Server\"} 3\n";
    facts.controllers[1].metrics = Ok(exposition::parse(text));
    let row = row(&facts, "controllers-follow");
    assert_eq!(row.mark, Mark::Fail);
    assert!(
        row.detail[0].contains("no longer serves: Server;"),
        "{row:?}"
    );
}

/// Such a proxy is not queried, so that only the state of its pod shows it.
#[test]
fn proxy_that_has_not_started_is_reported_as_not_ready() {
    let mut facts = healthy();
    facts.proxies.retain(|proxy| proxy.pod != "web-0");
    let state = json!({"state": {"waiting": {"reason": "PodInitializing"}}});
    edit_pod(&mut facts, "web-0")["status"]["initContainerStatuses"] =
        json!([container_status("linkerd-proxy", state)]);
    let ready = row(&facts, "l5d-data-plane-ready");
    assert_eq!(ready.detail, ["shop/web-0: its proxy has not started yet"]);
}

/// `agent-ready` reports the agent, so that `agent-answers` must not.
#[test]
fn unready_agent_is_reported_once() {
    let mut facts = healthy();
    not_ready(&mut facts, "mesh-agent-b");
    facts.agents[1].status = Err("cannot reach port 9993".to_owned());
    assert_eq!(row(&facts, "agent-ready").mark, Mark::Fail);
    assert_eq!(row(&facts, "agent-answers").mark, Mark::Ok);
}

#[test]
fn failure_of_first_check_aborts_the_run() {
    let mut facts = healthy();
    facts.api_server = Err("no".to_owned());
    let mut rows = all_rows(&facts).into_iter();
    assert_eq!(rows.next().map(|row| row.mark), Some(Mark::Fail));
    assert!(rows.len() > 20);
    for row in rows {
        assert_eq!(row.mark, Mark::Skip, "{}", row.name);
        assert_eq!(row.detail, ["k8s-api failed"]);
    }
}

fn check_ids() -> Vec<&'static str> {
    let all = CATEGORIES.iter().flat_map(|category| category.checks);
    all.map(|check| check.id).collect()
}

/// Every check has one section in the guide, and every section belongs to a check.
#[test]
fn guide_has_one_section_for_each_check() {
    let sections: Vec<&str> = explain::sections().map(|(id, _text)| id).collect();
    let unique: BTreeSet<&str> = sections.iter().copied().collect();
    assert_eq!(unique.len(), sections.len(), "duplicate section");
    assert_eq!(unique, check_ids().into_iter().collect());
    for (id, text) in explain::sections() {
        assert!(!text.is_empty(), "{id} is empty");
        for link in text.split("](#").skip(1) {
            let target = link.split(')').next().unwrap();
            assert!(unique.contains(target), "{id} refers to {target}");
        }
    }
}
