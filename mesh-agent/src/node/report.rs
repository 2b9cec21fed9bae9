//! Status of the node: its pods with their counters, its programs, and totals. The agent reads it
//! for the socket, the metrics and the log.

use std::collections::BTreeMap;

use mesh_core::node::PodStatus;
use mesh_ebpf_common::counter::Counter;

use super::{Node, NodeError};
use crate::ebpf::{GuardCounters, PodCounters};
use crate::redirect::{PodRef, Tier};
use crate::registry::PodRecord;

impl Node {
    pub fn pods(&self) -> Result<Vec<PodStatus>, NodeError> {
        let counters = self.counters()?;
        let guarded = match &self.programs {
            None => Vec::new(),
            Some(programs) => programs.guard_counters()?,
        };
        let (records, _) = self.registry.records()?;
        let pods = records
            .into_iter()
            .map(|PodRecord { redirect, .. }| PodStatus {
                connections: connections(redirect.cookie, &counters, &guarded),
                pod: redirect.pod,
                container_id: redirect.sandbox_id,
                netns: redirect.netns,
                netns_cookie: redirect.cookie,
                addresses: redirect.addresses,
                tier: redirect.tier,
            });
        Ok(pods.collect())
    }

    /// Returns the kernel programs' counters of each enrolled pod; empty without programs.
    pub fn counters(&self) -> Result<Vec<PodCounters>, NodeError> {
        match &self.programs {
            None => Ok(Vec::new()),
            Some(programs) => Ok(programs.counters()?),
        }
    }

    /// Returns the guard's counters of each enrolled pod; empty while it is off.
    pub fn guard_counters(&self) -> Result<Vec<(PodRef, GuardCounters)>, NodeError> {
        let Some(programs) = &self.programs else {
            return Ok(Vec::new());
        };
        let counters = programs.guard_counters()?;
        if counters.is_empty() {
            return Ok(Vec::new());
        }
        let (records, _) = self.registry.records()?;
        let with_pod = |record: PodRecord| {
            let redirect = record.redirect;
            let counters = counters
                .iter()
                .find(|guard| guard.cookie == redirect.cookie)?;
            Some((redirect.pod, *counters))
        };
        Ok(records.into_iter().filter_map(with_pod).collect())
    }

    pub fn programs(&self) -> Result<Vec<String>, NodeError> {
        let attached = match &self.programs {
            None => Vec::new(),
            Some(programs) => programs.attached()?,
        };
        Ok(attached.into_iter().map(str::to_owned).collect())
    }

    pub fn pods_by_tier(&self) -> Result<BTreeMap<Tier, usize>, NodeError> {
        let mut pods_by_tier = BTreeMap::new();
        for record in self.registry.records()?.0 {
            *pods_by_tier.entry(record.redirect.tier).or_default() += 1;
        }
        Ok(pods_by_tier)
    }
}

/// Returns the nonzero connection counts by `direction_verdict`, the labels of the metric.
pub fn by_verdict(counters: &PodCounters) -> BTreeMap<String, u64> {
    Counter::ALL
        .into_iter()
        .map(|counter| {
            let name = format!("{}_{}", counter.direction(), counter.verdict());
            (name, counters.get(counter))
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn connections(
    cookie: u64,
    counters: &[PodCounters],
    guarded: &[GuardCounters],
) -> BTreeMap<String, u64> {
    let counters = counters.iter().find(|counters| counters.cookie == cookie);
    let mut connections = counters.map(by_verdict).unwrap_or_default();
    if let Some(guard) = guarded.iter().find(|guard| guard.cookie == cookie) {
        let named = [
            ("guard_passed", guard.passed),
            ("guard_dropped", guard.dropped),
        ];
        let nonzero = named.into_iter().filter(|(_, count)| *count > 0);
        connections.extend(nonzero.map(|(name, count)| (name.to_owned(), count)));
    }
    connections
}
