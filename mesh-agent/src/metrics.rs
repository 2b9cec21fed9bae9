//! What the agent exports. Names begin with `mesh_agent_`; docs/operations/agent.md explains each.

mod guard;
mod surroundings;

use std::collections::{BTreeMap, HashMap, HashSet};

use mesh_core::node::{Enrolled, NodeStatus, RefusalReason, SelfTestOutcome};
use mesh_ebpf_common::counter::Counter as Verdict;
use mesh_runtime::{
    build_info::BuildInfo,
    metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry},
};

use crate::{
    ebpf::{GuardCounters, PodCounters},
    node::Care,
    redirect::{GuardMode, PodRef, Tier},
};
use guard::Guard;
pub use surroundings::{CniChain, WaitingPods};

#[derive(Debug)]
pub struct Metrics {
    enrolments: CounterFamily,
    pods: BTreeMap<Tier, Gauge>,
    swept: Counter,
    failures: Gauge,
    connections: Connections,
    guard: Guard,
    /// Constant; kept because a gauge ends with its handle.
    _constant: Vec<Gauge>,
}

/// The kernel counts per pod and forgets a pod with its counts; what is exported only grows.
#[derive(Debug)]
struct Connections {
    exported: Vec<(Verdict, Counter)>,
    /// What each pod's counters said last.
    seen: HashMap<u64, HashMap<Verdict, u64>>,
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
            "Things that the last sweep could not put right; the log names them",
        );
        Self {
            enrolments: registry.counter_family(
                "mesh_agent_enrolments_total",
                "Enrolments that the CNI plugin asked for, by result and, for refused ones, reason",
            ),
            pods: Tier::ALL
                .map(|tier| (tier, pods.with(&Labels::new().with("tier", tier.as_str()))))
                .into(),
            swept: counter(
                "mesh_agent_swept_pods_total",
                "Pods that were found gone without a CNI DEL and forgotten",
            ),
            failures: failures.with(&Labels::new()),
            connections: Connections::new(registry),
            guard: Guard::new(registry, guard),
            _constant: constant(registry, status),
        }
    }

    pub fn enrolled(&self, result: Result<&Enrolled, RefusalReason>) {
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

    pub fn counted(&self, census: &BTreeMap<Tier, usize>) {
        for (tier, gauge) in &self.pods {
            let count = census.get(tier).copied().unwrap_or_default();
            gauge.set(count.try_into().unwrap_or(i64::MAX));
        }
    }

    pub fn cared(&self, care: &Care) {
        self.swept.inc_by(care.removed.len() as u64);
        self.failures
            .set(care.failures.len().try_into().unwrap_or(i64::MAX));
    }

    /// Adds what the kernel counted since the last time.
    pub fn observe(&mut self, counters: &[PodCounters]) {
        self.connections.observe(counters);
    }

    /// Adds what the guard saw since the last time, and returns the pods that went around their
    /// proxies.
    pub fn guarded(&mut self, counters: &[(PodRef, GuardCounters)]) -> Vec<PodRef> {
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
            seen: HashMap::new(),
        }
    }

    fn observe(&mut self, counters: &[PodCounters]) {
        for pod in counters {
            let seen = self.seen.entry(pod.cookie).or_default();
            for (verdict, exported) in &self.exported {
                let now = pod.of(*verdict);
                let before = seen.insert(*verdict, now).unwrap_or_default();
                // Less than before: the pod was enrolled anew in between, and its counters began
                // again.
                exported.inc_by(now.checked_sub(before).unwrap_or(now));
            }
        }
        let alive: HashSet<u64> = counters.iter().map(|pod| pod.cookie).collect();
        self.seen.retain(|cookie, _| alive.contains(cookie));
    }
}

fn constant(registry: &Registry, status: &NodeStatus) -> Vec<Gauge> {
    let tier: GaugeFamily = registry.gauge_family(
        "mesh_agent_tier_info",
        "How pods of this node are redirected, and why so; the value is always 1",
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
