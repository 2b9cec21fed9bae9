//! Metrics of an agent for systemd units.

use std::collections::HashMap;

use mesh_core::machine::{UnitState, UnitStatus};
use mesh_core::node::{NodeStatus, RefusalReason};
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, Labels, Registry};

use super::{Connections, constant};
use crate::ebpf::PodCounters;
use crate::machine::MachineReport;

#[derive(Debug)]
pub struct MachineMetrics {
    enrolments: CounterFamily,
    units: Vec<(UnitState, Gauge)>,
    failures: Gauge,
    connections: Connections,
    severed: CounterFamily,
    /// By unit, with the last value read from the kernel.
    severed_by_unit: HashMap<String, (Counter, u64)>,
    /// Constant; stored because dropping a gauge removes its series.
    _constant: Vec<Gauge>,
}

impl MachineMetrics {
    pub fn new(registry: &Registry, status: &NodeStatus) -> Self {
        BuildInfo::CURRENT.export(registry, "mesh_agent_build_info");
        registry.export_process();
        let units = registry.gauge_family(
            "mesh_agent_units",
            "Enrolled systemd units, by whether their connections are redirected",
        );
        let failures = registry.gauge_family(
            "mesh_agent_sweep_failures",
            "Failures of the last reconciliation; the log names them",
        );
        Self {
            enrolments: registry.counter_family(
                "mesh_agent_unit_enrolments_total",
                "Requests to enrol a systemd unit, by result and, for refused ones, reason",
            ),
            units: UnitState::ALL
                .map(|state| {
                    (
                        state,
                        units.with(&Labels::new().with("state", state.as_str())),
                    )
                })
                .into(),
            failures: failures.with(&Labels::new()),
            connections: Connections::new(registry),
            severed: registry.counter_family(
                "mesh_agent_severed_connections_total",
                "Connections that reached a systemd unit around its proxy and were severed",
            ),
            severed_by_unit: HashMap::new(),
            _constant: constant(registry, status),
        }
    }

    pub fn record_enrolment(&self, result: Result<UnitState, RefusalReason>) {
        let (result, reason) = match result {
            Ok(state) => ("enrolled", state.as_str()),
            Err(reason) => ("refused", reason.as_str()),
        };
        let labels = Labels::new().with("result", result).with("reason", reason);
        self.enrolments.with(&labels).inc();
    }

    pub fn record_reconcile(&self, report: &MachineReport) {
        let failures = report.failures.len().try_into();
        self.failures.set(failures.unwrap_or(i64::MAX));
    }

    /// Adds what the kernel counted since the last call.
    pub fn observe(&mut self, counters: &[PodCounters]) {
        self.connections.observe(counters);
    }

    pub fn observe_units(&mut self, units: &[UnitStatus]) {
        for (state, gauge) in &self.units {
            let count = units.iter().filter(|unit| unit.state == *state).count();
            gauge.set(count.try_into().unwrap_or(i64::MAX));
        }
        let family = &self.severed;
        for unit in units {
            let now = unit.connections.get(crate::machine::SEVERED).copied();
            let now = now.unwrap_or_default();
            let (counter, before) = self
                .severed_by_unit
                .entry(unit.unit.clone())
                .or_insert_with(|| (family.with(&Labels::new().with("unit", &*unit.unit)), 0));
            // A lower value: the unit was enrolled again in between.
            counter.inc_by(now.checked_sub(*before).unwrap_or(now));
            *before = now;
        }
        let is_known = |name: &String| units.iter().any(|unit| unit.unit == *name);
        self.severed_by_unit.retain(|name, _| is_known(name));
    }
}
