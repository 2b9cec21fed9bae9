//! Every check passes on a healthy cluster, and each notices a fault of its own.

use std::collections::BTreeSet;

use serde_json::json;

use super::{fixture::healthy, *};
use crate::clients::metrics;

mod consequences;
mod faults;
mod objects;
mod unlisted;

use faults::{FAULTS, Fault, change_pod, not_ready, pre};

/// Every fault that is planted.
fn all_faults() -> impl Iterator<Item = &'static Fault> {
    [FAULTS, objects::FAULTS, unlisted::FAULTS]
        .into_iter()
        .flatten()
}

fn find<'a>(reports: &'a [CategoryReport], anchor: &str) -> Option<&'a Report> {
    let mut all = reports.iter().flat_map(|category| &category.checks);
    all.find(|report| report.name == anchor)
}

#[test]
fn nothing_is_wrong_with_a_healthy_cluster() {
    for report in judge(&healthy())
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
    for report in judge(&facts).iter().flat_map(|category| &category.checks) {
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
fn every_planted_fault_is_named() {
    for fault in all_faults() {
        let mut facts = healthy();
        (fault.plant)(&mut facts);
        let reports = judge(&facts);
        let report = find(&reports, fault.anchor)
            .unwrap_or_else(|| panic!("{}: the check did not run", fault.anchor));
        let detail = report.detail.join("\n");
        assert_eq!(report.mark, fault.mark, "{}: {detail}", fault.anchor);
        assert!(detail.contains(fault.says), "{}: {detail}", fault.anchor);
        assert_eq!(report.cause, None, "{}: it is the root cause", fault.anchor);
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

/// No check without a fault that it was seen to notice.
#[test]
fn every_check_has_a_fault() {
    let planted: BTreeSet<&str> = all_faults().map(|fault| fault.anchor).collect();
    let checks: BTreeSet<&str> = anchors().into_iter().collect();
    assert_eq!(planted, checks);
}

/// Who may not read Secrets still learns the rest.
#[test]
fn what_cannot_be_seen_says_so() {
    let mut facts = healthy();
    facts.objects.webhook_secret = Err("cannot read the injector's Secret: forbidden".to_owned());
    let reports = judge(&facts);
    let report = find(&reports, "l5d-proxy-injector-webhook-cert-valid").unwrap();
    assert_eq!(
        report.detail,
        ["cannot read the injector's Secret: forbidden"]
    );
    assert_eq!(find(&reports, "webhook-injects").unwrap().mark, Mark::Ok);
}

/// What ten checks need is missing once.
#[test]
fn the_same_obstacle_is_named_once() {
    let mut facts = healthy();
    facts.objects.config = Ok(None);
    let reports = judge(&facts);
    let checks = reports.iter().flat_map(|category| &category.checks);
    let failed = checks.filter(|report| report.mark != Mark::Ok);
    let failed: Vec<&str> = failed.map(|report| report.name).collect();
    assert_eq!(failed, ["l5d-existence-linkerd-config"]);
}

/// A Gateway API that is not there cannot change.
#[test]
fn a_kind_that_is_not_served_need_not_be_followed() {
    let mut facts = healthy();
    let text =
        "source_kind_served{kind=\"GrpcRoute\"} 0\nsource_kind_synced{kind=\"GrpcRoute\"} 0\n";
    facts.controllers[1].metrics = Ok(metrics::parse(text));
    let reports = judge(&facts);
    assert_eq!(find(&reports, "controllers-follow").unwrap().mark, Mark::Ok);
}

/// Such a proxy is not asked, so nothing but its pod says so.
#[test]
fn a_proxy_that_has_not_started_is_not_ready() {
    let mut facts = healthy();
    facts.proxies.retain(|proxy| proxy.pod != "web-0");
    change_pod(&mut facts, "web-0", |pod| {
        pod["status"]["initContainerStatuses"] = json!([{
            "name": "linkerd-proxy", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "PodInitializing"}}
        }]);
    });
    let reports = judge(&facts);
    let report = find(&reports, "l5d-data-plane-ready").unwrap();
    assert_eq!(report.detail, ["shop/web-0: its proxy has not started yet"]);
}

/// The agent's own check says why it is not ready; that it does not answer either is no second
/// fault.
#[test]
fn an_agent_that_is_not_ready_is_named_once() {
    let mut facts = healthy();
    not_ready(&mut facts, "mesh-agent-b");
    facts.agents[1].status = Err("cannot reach port 9993".to_owned());
    let reports = judge(&facts);
    assert_eq!(find(&reports, "agent-ready").unwrap().mark, Mark::Fail);
    assert_eq!(find(&reports, "agent-answers").unwrap().mark, Mark::Ok);
}

#[test]
fn a_check_can_end_the_run() {
    let mut facts = healthy();
    facts.server = Err("no".to_owned());
    let reports = judge(&facts);
    assert_eq!(
        reports
            .iter()
            .map(|category| category.checks.len())
            .sum::<usize>(),
        1
    );
}

fn anchors() -> Vec<&'static str> {
    let all = CATEGORIES.iter().flat_map(|category| category.checks);
    all.map(|check| check.anchor).collect()
}

/// Every check has a section of its own in the guide, and every section belongs to a check.
#[test]
fn guide_and_checks_agree() {
    let sections: Vec<&str> = explain::sections().map(|(id, _text)| id).collect();
    let unique: BTreeSet<&str> = sections.iter().copied().collect();
    assert_eq!(unique.len(), sections.len(), "a section is there twice");
    assert_eq!(unique, anchors().into_iter().collect());
    for (id, text) in explain::sections() {
        assert!(!text.is_empty(), "{id} says nothing");
        for link in text.split("](#").skip(1) {
            let target = link.split(')').next().unwrap();
            assert!(unique.contains(target), "{id} points to {target}");
        }
    }
}
