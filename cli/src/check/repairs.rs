//! Repairs by agents and injectors within the last day. The mesh works, but something in the
//! cluster interferes with it.

use std::collections::BTreeMap;

use mesh_core::node::{Repair, RepairKind};

use super::certificate::format_duration;
use super::{
    AppliesTo, Category, Check, CheckResult, Environment, Facts, Finding, Outcome, count, webhook,
};

pub(super) const CATEGORY: Category = Category {
    name: "mesh-repairs",
    applies: |facts| facts.environment != Environment::Machine && facts.is_installed_mode(),
    checks: &[Check::new(
        "repairs",
        "agents and injector repaired nothing within the last day",
        "meshctl check explain repairs",
        repairs,
    )
    .applies_to(AppliesTo::Everywhere)],
};

/// Metrics of the injector.
const LAST_DAY: &str = "mesh_injector_repairs_last_day";
const LATEST: &str = "mesh_injector_last_repair_timestamp_seconds";

/// The repairs of one kind by all replicas.
#[derive(Default)]
struct RepairCount {
    last_day: u64,
    latest: u64,
}

fn repairs(facts: &Facts) -> CheckResult {
    let mut findings = by_injectors(facts);
    let mut in_place = 0_usize;
    for (node, status) in super::agents::statuses(facts) {
        for repair in &status.repairs {
            // On every new node the agent enrols the pods that started before it.
            if repair.kind == RepairKind::NotEnrolled {
                in_place += usize::try_from(repair.last_day).unwrap_or(0);
            } else {
                findings.push(by_agent(facts, node, repair));
            }
        }
    }
    let ok = match in_place {
        0 => String::new(),
        pods => format!(
            "enrolled {} in place that started without the plugin",
            count(pods, "pod", "pods")
        ),
    };
    Ok(Outcome::warn_if(findings, ok))
}

fn by_agent(facts: &Facts, node: &str, repair: &Repair) -> Finding {
    let what = match repair.kind {
        RepairKind::PluginUnchained => "put mesh-cni back into the CNI configuration",
        RepairKind::PluginShadowed => {
            "put mesh-cni into another CNI configuration, which took precedence"
        }
        RepairKind::PluginMissing => "reinstalled the program mesh-cni, which was missing",
        RepairKind::PluginAltered => "reinstalled the program mesh-cni, which was altered",
        RepairKind::PluginNotExecutable => "made the program mesh-cni executable again",
        RepairKind::ProgramsDetached => {
            "reattached its kernel programs, which were detached or unpinned"
        }
        RepairKind::PinsDeleted => {
            "repinned its kernel programs and redirected every pod, because all pins were deleted"
        }
        RepairKind::Incomplete => "completed the redirection of a pod",
        RepairKind::NotEnrolled => "redirected a running pod",
        RepairKind::Other => "made a repair that this version of meshctl does not know",
    };
    let finding = Finding::new(format!(
        "node {node}: the agent {what}: {}; {}",
        format_frequency(u64::from(repair.last_day), repair.at, facts.now),
        repair.detail
    ));
    match facts.environment {
        Environment::Cluster => finding.with_fix(format!(
            "find out what changed it on node {node}: kubectl -n {{ns}} get events --field-selector reason=Repaired; meshctl check explain repairs lists the usual programs"
        )),
        _ => finding.with_fix("meshctl local logs --agent"),
    }
}

fn by_injectors(facts: &Facts) -> Vec<Finding> {
    let mut by_kind: BTreeMap<&str, RepairCount> = BTreeMap::new();
    for controller in &facts.controllers {
        for sample in controller.metrics.as_deref().unwrap_or_default() {
            let value = sample.value as u64;
            if value == 0 || (sample.name != LAST_DAY && sample.name != LATEST) {
                continue;
            }
            let repairs = by_kind.entry(sample.label("found")).or_default();
            if sample.name == LAST_DAY {
                repairs.last_day += value;
            } else {
                repairs.latest = repairs.latest.max(value);
            }
        }
    }
    let repairs = by_kind
        .into_iter()
        .filter(|(_, repairs)| repairs.last_day > 0);
    repairs
        .map(|(found, repairs)| {
            let (what, fix) = describe_injector_repair(found);
            Finding::new(format!(
                "the injector {what}: {}",
                format_frequency(repairs.last_day, repairs.latest, facts.now)
            ))
            .with_fix(fix)
        })
        .collect()
}

/// Returns what the injector repaired, and how an operator finds the cause.
fn describe_injector_repair(found: &str) -> (&'static str, String) {
    let registration = webhook::CONFIGURATION;
    let secret = webhook::SECRET;
    match found {
        "ca-bundle-altered" => (
            "restored the caBundle of its registration, which was altered or removed",
            format!(
                "kubectl get mutatingwebhookconfiguration {registration} -o yaml --show-managed-fields shows which program wrote it"
            ),
        ),
        "certificate-missing" => (
            "recreated its certificate, whose Secret was deleted",
            format!("the API server's audit log shows which program deletes Secret {secret} in {{ns}}"),
        ),
        "certificate-expired" => (
            "recreated its certificate, which had expired",
            "the injector did not run for weeks, or a clock is wrong: kubectl -n {ns} logs deployment/linkerd-proxy-injector -c proxy-injector".to_owned(),
        ),
        _ => (
            "recreated its certificate, whose Secret was not usable",
            format!(
                "kubectl -n {{ns}} get secret {secret} -o yaml --show-managed-fields shows which program wrote it"
            ),
        ),
    }
}

/// Returns `3 times in the last day, the last time 12 minutes ago (2026-01-01T00:00:00Z)`.
fn format_frequency(times: u64, latest: u64, now: u64) -> String {
    let times = match times {
        1 => "once in the last day".to_owned(),
        times => format!("{times} times in the last day"),
    };
    let at = i64::try_from(latest)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let at = at.map_or_else(String::new, |at| format!(" ({at})"));
    format!(
        "{times}, the last time {} ago{at}",
        format_duration(now.saturating_sub(latest))
    )
}
