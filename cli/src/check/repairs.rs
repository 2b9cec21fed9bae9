//! What agents and injector put right within the last day. The mesh works, and something in the
//! cluster works against it.

use std::collections::BTreeMap;

use mesh_core::node::{Repair, RepairKind};

use super::{
    Category, Check, Ends, Facts, Line, On, Outcome, Place, Verdict, certificate::span, count,
    webhook,
};

pub(super) const CATEGORY: Category = Category {
    name: "mesh-repairs",
    applies: |facts| facts.place != Place::Machine && facts.is_installed_mode(),
    checks: &[Check {
        anchor: "repairs",
        description: "nothing had to be repaired within the last day",
        advice: "meshctl check explain repairs",
        explained_by: &[],
        ends: Ends::Nothing,
        on: On::Anywhere,
        look: repairs,
    }],
};

/// The injector's own word, from its metrics.
const LAST_DAY: &str = "mesh_injector_repairs_last_day";
const LATEST: &str = "mesh_injector_last_repair_timestamp_seconds";

/// Of one kind, by all replicas.
#[derive(Default)]
struct Told {
    last_day: u64,
    latest: u64,
}

fn repairs(facts: &Facts) -> Verdict {
    let mut lines = by_injectors(facts);
    let mut in_place = 0_usize;
    for (node, status) in super::agents::statuses(facts) {
        for repair in &status.repairs {
            // Pods that start before the agent are enrolled where they stand, on every new node.
            if repair.kind == RepairKind::NotEnrolled {
                in_place += usize::try_from(repair.last_day).unwrap_or(0);
            } else {
                lines.push(by_agent(facts, node, repair));
            }
        }
    }
    let ok = match in_place {
        0 => String::new(),
        pods => format!(
            "{} that started without the plugin, enrolled in place",
            count(pods, "pod", "pods")
        ),
    };
    Ok(Outcome::warn_if(lines, ok))
}

fn by_agent(facts: &Facts, node: &str, repair: &Repair) -> Line {
    let what = match repair.kind {
        RepairKind::PluginUnchained => "put mesh-cni back into the CNI configuration",
        RepairKind::PluginShadowed => {
            "put mesh-cni into another CNI configuration, which came first"
        }
        RepairKind::PluginMissing => "installed the program mesh-cni again, which was gone",
        RepairKind::PluginAltered => "installed the program mesh-cni again, which was another one",
        RepairKind::PluginNotExecutable => {
            "made the program mesh-cni executable again, which could not be executed"
        }
        RepairKind::ProgramsDetached => {
            "attached its kernel programs again, which were detached or unpinned"
        }
        RepairKind::PinsDeleted => {
            "pinned its kernel programs again and redirected every pod, for all pins were gone"
        }
        RepairKind::Incomplete => "completed the redirection of a pod",
        RepairKind::NotEnrolled => "redirected a pod that ran without",
        RepairKind::Other => "put something right that this program does not know",
    };
    let line = Line::new(format!(
        "node {node}: the agent {what}: {}; {}",
        how_often(u64::from(repair.last_day), repair.at, facts.now),
        repair.detail
    ));
    match facts.place {
        Place::Cluster => line.fixed_by(format!(
            "find out what changed it on node {node}: kubectl -n {{ns}} get events --field-selector reason=Repaired; meshctl check explain repairs has the usual programs"
        )),
        _ => line.fixed_by("meshctl local logs --agent"),
    }
}

fn by_injectors(facts: &Facts) -> Vec<Line> {
    let mut by_kind: BTreeMap<&str, Told> = BTreeMap::new();
    for controller in &facts.controllers {
        for sample in controller.metrics.as_deref().unwrap_or_default() {
            let value = sample.value as u64;
            if value == 0 || (sample.name != LAST_DAY && sample.name != LATEST) {
                continue;
            }
            let told = by_kind.entry(sample.label("found")).or_default();
            match sample.name == LAST_DAY {
                true => told.last_day += value,
                false => told.latest = told.latest.max(value),
            }
        }
    }
    let told = by_kind.into_iter().filter(|(_, told)| told.last_day > 0);
    told.map(|(found, told)| {
        let (what, fix) = by_kind_of(found);
        Line::new(format!(
            "the injector {what}: {}",
            how_often(told.last_day, told.latest, facts.now)
        ))
        .fixed_by(fix)
    })
    .collect()
}

/// What the injector did, and how an operator finds out who made it necessary.
fn by_kind_of(found: &str) -> (&'static str, String) {
    let registration = webhook::CONFIGURATION;
    let secret = webhook::SECRET;
    match found {
        "ca-bundle-altered" => (
            "put back the caBundle of its registration, which was another's or was taken away",
            format!(
                "kubectl get mutatingwebhookconfiguration {registration} -o yaml --show-managed-fields says which program wrote it"
            ),
        ),
        "certificate-missing" => (
            "made its certificate again, whose Secret was deleted",
            format!("find out what deletes Secret {secret} in {{ns}}: the API server's audit log names it"),
        ),
        "certificate-expired" => (
            "made its certificate again, which had expired",
            "was the injector away for weeks, or a clock wrong? kubectl -n {ns} logs deployment/linkerd-proxy-injector -c proxy-injector".to_owned(),
        ),
        _ => (
            "made its certificate again, whose Secret could not be used",
            format!(
                "kubectl -n {{ns}} get secret {secret} -o yaml --show-managed-fields says which program wrote it"
            ),
        ),
    }
}

/// `3 times in the last day, the last time 12 minutes ago (2026-01-01T00:00:00Z)`.
fn how_often(times: u64, latest: u64, now: u64) -> String {
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
        span(now.saturating_sub(latest))
    )
}
