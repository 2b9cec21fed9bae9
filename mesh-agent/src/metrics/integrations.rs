//! Metrics of the agent's integrations: the CNI chain, and the pods that wait to be enrolled.

use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};

#[derive(Debug)]
pub struct CniChain {
    chained: Gauge,
    writes: Counter,
}

#[derive(Debug)]
pub struct WaitingPods(Gauge);

impl CniChain {
    pub fn new(registry: &Registry) -> Self {
        let chained = registry.gauge_family(
            "mesh_agent_cni_chained",
            "1 while mesh-cni is in the CNI configuration that the container runtime uses, else 0",
        );
        let writes = registry.counter_family(
            "mesh_agent_cni_writes_total",
            "How often mesh-cni was written into the CNI configuration; more than one means that another program removed it",
        );
        Self {
            chained: chained.with(&Labels::new()),
            writes: writes.with(&Labels::new()),
        }
    }

    pub fn record(&self, is_chained: bool, has_written: bool) {
        self.chained.set(i64::from(is_chained));
        self.writes.inc_by(u64::from(has_written));
    }
}

impl WaitingPods {
    pub fn new(registry: &Registry) -> Self {
        let waiting = registry.gauge_family(
            "mesh_agent_waiting_pods",
            "Pods of this node that have a proxy and are not redirected to it; the agent's status lists the reasons",
        );
        Self(waiting.with(&Labels::new()))
    }

    pub fn set(&self, count: usize) {
        self.0.set(count.try_into().unwrap_or(i64::MAX));
    }
}
