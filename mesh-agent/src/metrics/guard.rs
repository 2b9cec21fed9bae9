//! What the guard saw, per pod: who goes around a proxy is the question, and few pods do.

use std::collections::HashMap;

use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, Labels, Registry};

use crate::{
    ebpf::GuardCounters,
    redirect::{GuardMode, PodRef},
};

#[derive(Debug)]
pub(super) struct Guard {
    family: CounterFamily,
    pods: HashMap<u64, Seen>,
    /// Constant; kept because a gauge ends with its handle.
    _mode: Gauge,
}

/// One pod's series, and what its counters said last.
#[derive(Debug)]
struct Seen {
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
                "TCP connection requests (packets, so repetitions count) that left a pod around its proxy, by pod and whether they were dropped",
            ),
            pods: HashMap::new(),
            _mode: gauge,
        }
    }

    /// Adds what was seen since the last time, and returns the pods for which that is something.
    pub(super) fn observe(&mut self, counters: &[(PodRef, GuardCounters)]) -> Vec<PodRef> {
        let mut bypassed = Vec::new();
        for (pod, now) in counters {
            let family = &self.family;
            let seen = self.pods.entry(now.cookie).or_insert_with(|| Seen {
                passed: (series(family, pod, "passed"), 0),
                dropped: (series(family, pod, "dropped"), 0),
            });
            let more = add(&mut seen.passed, now.passed) + add(&mut seen.dropped, now.dropped);
            if more > 0 {
                bypassed.push(pod.clone());
            }
        }
        let is_known = |cookie: &u64| counters.iter().any(|(_, now)| now.cookie == *cookie);
        self.pods.retain(|cookie, _| is_known(cookie));
        bypassed
    }
}

fn series(family: &CounterFamily, pod: &PodRef, action: &str) -> Counter {
    family.with(
        &Labels::new()
            .with("namespace", pod.namespace.as_str())
            .with("pod", pod.name.as_str())
            .with("action", action),
    )
}

fn add((exported, before): &mut (Counter, u64), now: u64) -> u64 {
    // Less than before: the pod was enrolled anew in between, and its counters began again.
    let more = now.checked_sub(*before).unwrap_or(now);
    *before = now;
    exported.inc_by(more);
    more
}
