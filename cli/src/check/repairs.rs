//! Repairs by agents and injectors within the last day. The mesh works, but something in the
//! cluster interferes with it.

use std::collections::BTreeMap;

use mesh_core::node::{Repair, RepairKind};

use super::framework::{AppliesTo, Category, Check, CheckResult, Finding, Outcome};
use crate::certificate::format_duration;
use crate::facts::names::{INJECTOR_REGISTRATION, INJECTOR_SECRET, VALIDATORS};
use crate::facts::{Environment, Facts};
use crate::output::count;

pub(super) const CATEGORY: Category = Category {
    name: "mesh-repairs",
    applies: |facts| facts.environment != Environment::Machine && facts.is_installed_mode(),
    checks: &[REPAIRS],
};

/// Also checked on hosts of systemd units.
pub(super) const REPAIRS: Check = Check::new(
    "repairs",
    "agents and webhooks repaired nothing within the last day",
    "meshctl check explain repairs",
    repairs,
)
.applies_to(AppliesTo::Everywhere);

/// Metrics of the controllers that serve webhooks.
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
    let mut notes = Vec::new();
    if in_place > 0 {
        notes.push(format!(
            "enrolled {} in place that started without the plugin",
            count(in_place, "pod", "pods")
        ));
    }
    if let Some(age) = youngest_record(facts).filter(|age| *age < DAY_SECONDS) {
        notes.push(format!(
            "a controller started {} ago and does not know of earlier repairs; kubectl get events -A --field-selector reason=Repaired has those of the last hour",
            format_duration(age)
        ));
    }
    Ok(Outcome::warn_if(findings, notes.join("; ")))
}

/// Repairs are counted over this period.
const DAY_SECONDS: u64 = 24 * 3600;
/// The start of a process, in seconds since 1970, as in all clients of Prometheus.
const STARTED: &str = "process_start_time_seconds";

/// Returns the seconds since the last controller that repairs started: its record begins then. The
/// record of an agent is a file of its node.
fn youngest_record(facts: &Facts) -> Option<u64> {
    let repairing = facts.controllers.iter().filter_map(|controller| {
        let metrics = controller.metrics.as_deref().ok()?;
        let repairs = metrics.iter().any(|sample| sample.name == LAST_DAY);
        let started = metrics.iter().find(|sample| sample.name == STARTED)?;
        repairs.then_some(started.value as u64)
    });
    let started = repairing.max()?;
    Some(facts.now.saturating_sub(started))
}

fn by_agent(facts: &Facts, node: &str, repair: &Repair) -> Finding {
    let object = match facts.environment {
        Environment::Cluster | Environment::LocalNode => "pod",
        Environment::Machine => "unit",
    };
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
            "repinned its kernel programs and redirected every OBJECT, because all pins were deleted"
        }
        RepairKind::Incomplete => "completed the redirection of a OBJECT",
        RepairKind::NotEnrolled => "redirected a running OBJECT",
        RepairKind::Other => "made a repair that this version of meshctl does not know",
    };
    let what = what.replace("OBJECT", object);
    let finding = Finding::new(format!(
        "node {node}: the agent {what}: {}; {}",
        format_frequency(u64::from(repair.last_day), repair.at, facts.now),
        repair.detail
    ));
    match facts.environment {
        Environment::Cluster => finding.with_fix(format!(
            "find out what changed it on node {node}: kubectl -n {{ns}} get events --field-selector reason=Repaired; meshctl check explain repairs lists the usual programs"
        )),
        Environment::LocalNode => finding.with_fix("meshctl local logs --agent"),
        Environment::Machine => {
            finding.with_fix("journalctl -u mesh-agent.service shows when; look for a program that removes kernel programs or pins then")
        }
    }
}

fn by_injectors(facts: &Facts) -> Vec<Finding> {
    let mut by_kind: BTreeMap<(WebhookServer, &str), RepairCount> = BTreeMap::new();
    for controller in &facts.controllers {
        for sample in controller.metrics.as_deref().unwrap_or_default() {
            let value = sample.value as u64;
            if value == 0 || (sample.name != LAST_DAY && sample.name != LATEST) {
                continue;
            }
            let repairs = by_kind
                .entry((WebhookServer::of(controller.name), sample.label("found")))
                .or_default();
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
        .map(|((server, found), repairs)| {
            let (what, fix) = describe_repair(&server, found);
            Finding::new(format!(
                "the {} {what}: {}",
                server.name,
                format_frequency(repairs.last_day, repairs.latest, facts.now)
            ))
            .with_fix(fix)
        })
        .collect()
}

/// A controller that serves a webhook, and its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WebhookServer {
    name: &'static str,
    /// The resource of the registration, with its name.
    registration: (&'static str, &'static str),
    secret: &'static str,
    deployment: &'static str,
    container: &'static str,
}

impl WebhookServer {
    fn of(container: &str) -> Self {
        let validator = VALIDATORS.iter().find(|names| names.container == container);
        match validator {
            Some(names) => Self {
                name: names.name,
                registration: ("validatingwebhookconfiguration", names.registration),
                secret: names.secret,
                deployment: "linkerd-destination",
                container: names.container,
            },
            None => Self {
                name: "injector",
                registration: ("mutatingwebhookconfiguration", INJECTOR_REGISTRATION),
                secret: INJECTOR_SECRET,
                deployment: "linkerd-proxy-injector",
                container: "proxy-injector",
            },
        }
    }
}

/// Returns what a controller repaired, and how an operator finds the cause.
fn describe_repair(server: &WebhookServer, found: &str) -> (&'static str, String) {
    let WebhookServer {
        registration: (resource, registration),
        secret,
        deployment,
        container,
        ..
    } = server;
    match found {
        "ca-bundle-altered" => (
            "restored the caBundle of its registration, which was altered or removed",
            format!(
                "kubectl get {resource} {registration} -o yaml --show-managed-fields shows which program wrote it"
            ),
        ),
        "certificate-missing" => (
            "recreated its certificate, whose Secret was deleted",
            format!(
                "the API server's audit log shows which program deletes Secret {secret} in {{ns}}"
            ),
        ),
        "certificate-expired" => (
            "recreated its certificate, which had expired",
            format!(
                "the controller did not run for weeks, or a clock is wrong: kubectl -n {{ns}} logs deployment/{deployment} -c {container}"
            ),
        ),
        "certificate-misnamed" => (
            "recreated its certificate, which was for another name",
            written_by(secret),
        ),
        "certificate-replaced" => (
            "recreated its certificate, which another program had replaced by one close to its end",
            written_by(secret),
        ),
        _ => (
            "recreated its certificate, whose Secret was not usable",
            written_by(secret),
        ),
    }
}

fn written_by(secret: &str) -> String {
    format!(
        "kubectl -n {{ns}} get secret {secret} -o yaml --show-managed-fields shows which program wrote it"
    )
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
