//! The guard's counters, per pod: few pods bypass their proxy, and operators need to know which.

use std::collections::HashMap;

use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, Labels, Registry};

use crate::ebpf::GuardCounters;
use crate::redirect::{GuardMode, PodRef};

#[derive(Debug)]
pub(super) struct Guard {
    family: CounterFamily,
    pods: HashMap<u64, PodSeries>,
    /// Constant; stored because dropping a gauge removes its series.
    _mode: Gauge,
}

/// One pod's exported series, each with the last value read from the kernel.
#[derive(Debug)]
struct PodSeries {
    passed: (Counter, u64),
    dropped: (Counter, u64),
}

impl Guard {
    pub(super) fn new(registry: &Registry, mode: GuardMode) -> Self {
        let modes = registry.gauge_family(
            "mesh_agent_guard_info",
            "What happens to connection requests that leave an enrolled pod around its proxy; the value is always 1",
        );
        let gauge = modes.with(&Labels::new().with("mode", mode.as_str()));
        gauge.set(1);
        Self {
            family: registry.counter_family(
                "mesh_agent_guard_bypasses_total",
                "TCP connection requests (packets, so retransmissions count) that left a pod around its proxy, by pod and whether they were dropped",
            ),
            pods: HashMap::new(),
            _mode: gauge,
        }
    }

    /// Adds the counts since the last call, and returns the pods with an increase.
    pub(super) fn observe(&mut self, counters: &[(PodRef, GuardCounters)]) -> Vec<PodRef> {
        let mut bypassed = Vec::new();
        for (pod, now) in counters {
            let family = &self.family;
            let series = self.pods.entry(now.cookie).or_insert_with(|| PodSeries {
                passed: (counter(family, pod, "passed"), 0),
                dropped: (counter(family, pod, "dropped"), 0),
            });
            let increase =
                add(&mut series.passed, now.passed) + add(&mut series.dropped, now.dropped);
            if increase > 0 {
                bypassed.push(pod.clone());
            }
        }
        let is_known = |cookie: &u64| counters.iter().any(|(_, now)| now.cookie == *cookie);
        self.pods.retain(|cookie, _| is_known(cookie));
        bypassed
    }
}

fn counter(family: &CounterFamily, pod: &PodRef, action: &str) -> Counter {
    family.with(
        &Labels::new()
            .with("namespace", pod.namespace.as_str())
            .with("pod", pod.name.as_str())
            .with("action", action),
    )
}

fn add((exported, before): &mut (Counter, u64), now: u64) -> u64 {
    // A lower value: the pod was enrolled again in between, and its counters restarted.
    let increase = now.checked_sub(*before).unwrap_or(now);
    *before = now;
    exported.inc_by(increase);
    increase
}
