//! The agent's metrics. Names begin with `mesh_agent_`; docs/operations/agent.md describes each.

mod guard;
mod integrations;
mod machine;

use std::collections::{BTreeMap, HashMap, HashSet};

use mesh_core::node::{Enrolled, NodeStatus, RefusalReason, SelfTestOutcome};
use mesh_ebpf_common::counter::Counter as Verdict;
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};

use crate::ebpf::{GuardCounters, PodCounters};
use crate::node::ReconcileReport;
use crate::redirect::{GuardMode, PodRef, Tier};
use guard::Guard;

pub use integrations::{CniChain, WaitingPods};
pub use machine::MachineMetrics;

#[derive(Debug)]
pub struct Metrics {
    enrolments: CounterFamily,
    pods: BTreeMap<Tier, Gauge>,
    swept: Counter,
    failures: Gauge,
    connections: Connections,
    guard: Guard,
    /// Constant; stored because dropping a gauge removes its series.
    _constant: Vec<Gauge>,
}

/// Exported connection counters. The kernel counts per pod and deletes a pod's counts with the pod,
/// while the exported sums only grow.
#[derive(Debug)]
struct Connections {
    exported: Vec<(Verdict, Counter)>,
    /// The last values read of each pod's counters.
    last: HashMap<u64, HashMap<Verdict, u64>>,
}

impl Metrics {
    pub fn new(registry: &Registry, status: &NodeStatus, guard: GuardMode) -> Self {
        BuildInfo::CURRENT.export(registry, "mesh_agent_build_info");
        registry.export_process();
        let pods = registry.gauge_family(
            "mesh_agent_pods",
            "Enrolled pods, by the tier that they were enrolled with",
        );
        let counter = |name, help| registry.counter_family(name, help).with(&Labels::new());
        let failures = registry.gauge_family(
            "mesh_agent_sweep_failures",
            "Failures of the last reconciliation; the log names them",
        );
        Self {
            enrolments: registry.counter_family(
                "mesh_agent_enrolments_total",
                "Enrolments that the CNI plugin requested, by result and, for refused ones, reason",
            ),
            pods: Tier::ALL
                .map(|tier| (tier, pods.with(&Labels::new().with("tier", tier.as_str()))))
                .into(),
            swept: counter(
                "mesh_agent_swept_pods_total",
                "Pods that ended without a CNI DEL and were removed",
            ),
            failures: failures.with(&Labels::new()),
            connections: Connections::new(registry),
            guard: Guard::new(registry, guard),
            _constant: constant(registry, status),
        }
    }

    pub fn record_enrolment(&self, result: Result<&Enrolled, RefusalReason>) {
        let labels = match result {
            Ok(enrolled) => Labels::new()
                .with("result", "enrolled")
                .with("reason", enrolled.tier.as_str()),
            Err(reason) => Labels::new()
                .with("result", "refused")
                .with("reason", reason.as_str()),
        };
        self.enrolments.with(&labels).inc();
    }

    pub fn set_pods(&self, pods_by_tier: &BTreeMap<Tier, usize>) {
        for (tier, gauge) in &self.pods {
            let count = pods_by_tier.get(tier).copied().unwrap_or_default();
            gauge.set(count.try_into().unwrap_or(i64::MAX));
        }
    }

    pub fn record_reconcile(&self, report: &ReconcileReport) {
        self.swept.inc_by(report.removed.len() as u64);
        self.failures
            .set(report.failures.len().try_into().unwrap_or(i64::MAX));
    }

    /// Adds what the kernel counted since the last call.
    pub fn observe(&mut self, counters: &[PodCounters]) {
        self.connections.observe(counters);
    }

    /// Adds what the guard counted since the last call; returns the pods with an increase.
    pub fn observe_guard(&mut self, counters: &[(PodRef, GuardCounters)]) -> Vec<PodRef> {
        self.guard.observe(counters)
    }
}

impl Connections {
    fn new(registry: &Registry) -> Self {
        let family = registry.counter_family(
            "mesh_agent_connections_total",
            "Connections of enrolled pods as the kernel programs decided, by direction and verdict",
        );
        let exported = Verdict::ALL.map(|verdict| {
            let labels = Labels::new()
                .with("direction", verdict.direction())
                .with("verdict", verdict.verdict());
            (verdict, family.with(&labels))
        });
        Self {
            exported: exported.into(),
            last: HashMap::new(),
        }
    }

    fn observe(&mut self, counters: &[PodCounters]) {
        for pod in counters {
            let last = self.last.entry(pod.cookie).or_default();
            for (verdict, exported) in &self.exported {
                let now = pod.get(*verdict);
                let before = last.insert(*verdict, now).unwrap_or_default();
                // A lower value: the pod was enrolled again in between, and its counters restarted.
                exported.inc_by(now.checked_sub(before).unwrap_or(now));
            }
        }
        let alive: HashSet<u64> = counters.iter().map(|pod| pod.cookie).collect();
        self.last.retain(|cookie, _| alive.contains(cookie));
    }
}

fn constant(registry: &Registry, status: &NodeStatus) -> Vec<Gauge> {
    let tier: GaugeFamily = registry.gauge_family(
        "mesh_agent_tier_info",
        "How pods of this node are redirected, and why; the value is always 1",
    );
    let checks: GaugeFamily = registry.gauge_family(
        "mesh_agent_self_test",
        "Each check of the eBPF self-test at start-up: 1 passed, 0 failed, -1 not supported by this kernel",
    );
    let mut gauges = vec![
        tier.with(
            &Labels::new()
                .with("tier", status.tier.as_str())
                .with("reason", status.reason.as_str()),
        ),
    ];
    gauges[0].set(1);
    for case in &status.self_test {
        let gauge = checks.with(&Labels::new().with("check", case.name.as_str()));
        gauge.set(match case.outcome {
            SelfTestOutcome::Passed => 1,
            SelfTestOutcome::Failed => 0,
            SelfTestOutcome::Skipped => -1,
        });
        gauges.push(gauge);
    }
    gauges
}
