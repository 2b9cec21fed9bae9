//! All checks pass on a healthy cluster, and each reports an injected fault.

use std::collections::BTreeSet;

use serde_json::json;

use super::fixture::healthy;
use super::*;
use crate::clients::metrics;
use faults::{FAULTS, Fault, change_pod, not_ready, pre};

mod consequences;
mod faults;
mod objects;
mod unlisted;

/// Returns all faults.
fn all_faults() -> impl Iterator<Item = &'static Fault> {
    [FAULTS, objects::FAULTS, unlisted::FAULTS]
        .into_iter()
        .flatten()
}

fn find<'a>(reports: &'a [CategoryReport], check: &str) -> Option<&'a Report> {
    let mut all = reports.iter().flat_map(|category| &category.checks);
    all.find(|report| report.name == check)
}

#[test]
fn all_checks_pass_on_a_healthy_cluster() {
    for report in evaluate(&healthy())
        .iter()
        .flat_map(|category| &category.checks)
    {
        assert_eq!(
            report.mark,
            Mark::Ok,
            "{}: {:?}",
            report.name,
            report.detail
        );
    }
    let mut facts = healthy();
    pre(&mut facts);
    for report in evaluate(&facts)
        .iter()
        .flat_map(|category| &category.checks)
    {
        assert_eq!(
            report.mark,
            Mark::Ok,
            "{}: {:?}",
            report.name,
            report.detail
        );
    }
}

#[test]
fn every_fault_is_reported_into_root_cause() {
    for fault in all_faults() {
        let mut facts = healthy();
        (fault.inject)(&mut facts);
        let reports = evaluate(&facts);
        let report = find(&reports, fault.check)
            .unwrap_or_else(|| panic!("{}: the check did not run", fault.check));
        let detail = report.detail.join("\n");
        assert_eq!(report.mark, fault.mark, "{}: {detail}", fault.check);
        assert!(detail.contains(fault.message), "{}: {detail}", fault.check);
        assert_eq!(report.cause, None, "{}: must be a root cause", fault.check);
        assert!(!report.advice.is_empty() && !report.hint.is_empty());
        for placeholder in ["{ns}", "{upgrade}"] {
            assert!(!report.advice.contains(placeholder), "{}", report.advice);
        }
        assert_eq!(
            success(&reports),
            !reports
                .iter()
                .flat_map(|category| &category.checks)
                .any(|report| report.mark == Mark::Fail)
        );
    }
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
    let reports = evaluate(&facts);
    let report = find(&reports, "l5d-proxy-injector-webhook-cert-valid").unwrap();
    assert_eq!(
        report.detail,
        ["cannot read the injector's Secret: forbidden"]
    );
    assert_eq!(find(&reports, "webhook-injects").unwrap().mark, Mark::Ok);
}

/// Ten checks use the missing ConfigMap.
#[test]
fn missing_fact_is_reported_once() {
    let mut facts = healthy();
    facts.objects.config = Ok(None);
    let reports = evaluate(&facts);
    let checks = reports.iter().flat_map(|category| &category.checks);
    let failed = checks.filter(|report| report.mark != Mark::Ok);
    let failed: Vec<&str> = failed.map(|report| report.name).collect();
    assert_eq!(failed, ["l5d-existence-linkerd-config"]);
}

/// Such as GRPCRoute without the Gateway API.
#[test]
fn unserved_kind_need_not_be_synced() {
    let mut facts = healthy();
    let text =
        "source_kind_served{kind=\"GrpcRoute\"} 0\nsource_kind_synced{kind=\"GrpcRoute\"} 0\n";
    facts.controllers[1].metrics = Ok(metrics::parse(text));
    let reports = evaluate(&facts);
    assert_eq!(find(&reports, "controllers-follow").unwrap().mark, Mark::Ok);
}

/// Such a proxy is not queried, so that only the state of its pod shows it.
#[test]
fn proxy_that_has_not_started_is_reported_as_not_ready() {
    let mut facts = healthy();
    facts.proxies.retain(|proxy| proxy.pod != "web-0");
    change_pod(&mut facts, "web-0", |pod| {
        pod["status"]["initContainerStatuses"] = json!([{
            "name": "linkerd-proxy", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "PodInitializing"}}
        }]);
    });
    let reports = evaluate(&facts);
    let report = find(&reports, "l5d-data-plane-ready").unwrap();
    assert_eq!(report.detail, ["shop/web-0: its proxy has not started yet"]);
}

/// `agent-ready` reports the agent, so that `agent-answers` must not.
#[test]
fn unready_agent_is_reported_once() {
    let mut facts = healthy();
    not_ready(&mut facts, "mesh-agent-b");
    facts.agents[1].status = Err("cannot reach port 9993".to_owned());
    let reports = evaluate(&facts);
    assert_eq!(find(&reports, "agent-ready").unwrap().mark, Mark::Fail);
    assert_eq!(find(&reports, "agent-answers").unwrap().mark, Mark::Ok);
}

#[test]
fn failure_of_first_check_aborts_the_run() {
    let mut facts = healthy();
    facts.api_server = Err("no".to_owned());
    let reports = evaluate(&facts);
    assert_eq!(
        reports
            .iter()
            .map(|category| category.checks.len())
            .sum::<usize>(),
        1
    );
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
