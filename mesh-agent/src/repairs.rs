//! What the agent found damaged on its node and put right: counted in a metric, remembered for a
//! day, and handed on to be told in events.
//!
//! Without it a program that takes mesh-cni away again and again, or an administrator that cleans
//! up, would go unnoticed as long as the agent is faster. The record is a file beside those of the
//! pods, so that it outlives the agent; it has a few hundred bytes for each kind, however often
//! something is repaired. Written by the tasks and the thread that repair, read for the agent's
//! status.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use mesh_core::node::{Repair, RepairKind};
use mesh_runtime::{
    log::chain,
    metrics::{Counter, Labels, Registry as MetricsRegistry},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::registry::{self, RegistryError};

/// Events that wait for the API server. Beyond it they are left out: the metric and the status have
/// what they would say.
const UNTOLD: usize = 64;
const SECONDS_OF_HOUR: u64 = 3600;
const HOURS_OF_DAY: u64 = 24;
/// Characters of a detail that are kept; some hold an error of another program.
const LONGEST_DETAIL: usize = 300;

/// A handle; all of them are the same record.
#[derive(Clone, Debug)]
pub struct Repairs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    counters: BTreeMap<RepairKind, Counter>,
    untold: mpsc::Sender<Repaired>,
    /// Held while the record is changed and written.
    record: Mutex<Record>,
}

/// One repair, for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    pub kind: RepairKind,
    pub detail: String,
}

/// Pure: time comes with each call, in seconds since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    /// The CNI configuration that mesh-cni was last seen in. Without it a first installation would
    /// look like a repair.
    #[serde(default)]
    chained_in: Option<String>,
    #[serde(default)]
    repairs: BTreeMap<RepairKind, History>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    at: u64,
    detail: String,
    /// How many in each hour since the epoch that had any; those of the last day.
    hours: BTreeMap<u64, u32>,
}

impl Repairs {
    /// Goes on with what an earlier agent recorded in the state directory. The receiver gets what
    /// is to be told in events.
    pub fn open(state_dir: &Path, metrics: &MetricsRegistry) -> (Self, mpsc::Receiver<Repaired>) {
        let family = metrics.counter_family(
            "mesh_agent_repairs_total",
            "What was found damaged and put right: parts of the mesh on this node, and the redirection of pods",
        );
        let counter = |kind: RepairKind| family.with(&Labels::new().with("found", kind.as_str()));
        let path = registry::repairs_path(state_dir);
        let record = registry::read_json(&path).unwrap_or_else(|error: RegistryError| {
            tracing::warn!(error = chain(&error), "The record of repairs begins anew");
            None
        });
        let (untold, told) = mpsc::channel(UNTOLD);
        let shared = Shared {
            path,
            counters: RepairKind::ALL.map(|kind| (kind, counter(kind))).into(),
            untold,
            record: Mutex::new(record.unwrap_or_default()),
        };
        let repairs = Self {
            shared: Arc::new(shared),
        };
        (repairs, told)
    }

    /// Notes one repair. The caller has logged it.
    pub fn note(&self, kind: RepairKind, detail: &str) {
        let detail: String = detail.chars().take(LONGEST_DETAIL).collect();
        if let Some(counter) = self.shared.counters.get(&kind) {
            counter.inc();
        }
        let event = Repaired {
            kind,
            detail: detail.clone(),
        };
        if let Err(mpsc::error::TrySendError::Full(event)) = self.shared.untold.try_send(event) {
            tracing::warn!(kind = %event.kind, "Too many repairs for the API server; one has no event");
        }
        let mut record = self.shared.record.lock();
        record.note(kind, detail, now());
        self.write(&record);
    }

    /// Those of the last 24 hours.
    pub fn of_last_day(&self) -> Vec<Repair> {
        self.shared.record.lock().of_last_day(now())
    }

    /// Where mesh-cni was last seen in the chain, also by an earlier agent.
    pub fn chained_in(&self) -> Option<String> {
        self.shared.record.lock().chained_in.clone()
    }

    pub fn set_chained_in(&self, file: &str) {
        let mut record = self.shared.record.lock();
        if record.chained_in.as_deref() != Some(file) {
            record.chained_in = Some(file.to_owned());
            self.write(&record);
        }
    }

    /// A record that cannot be written is still in memory.
    fn write(&self, record: &Record) {
        if let Err(error) = registry::write_json(&self.shared.path, record) {
            tracing::warn!(error = chain(&error), "Cannot write the record of repairs");
        }
    }
}

impl Record {
    fn note(&mut self, kind: RepairKind, detail: String, now: u64) {
        let hour = now / SECONDS_OF_HOUR;
        let history = self.repairs.entry(kind).or_default();
        history.at = now;
        history.detail = detail;
        history.hours.retain(|past, _| is_of_last_day(*past, hour));
        let count = history.hours.entry(hour).or_default();
        *count = count.saturating_add(1);
    }

    fn of_last_day(&self, now: u64) -> Vec<Repair> {
        let hour = now / SECONDS_OF_HOUR;
        let of_kind = |(kind, history): (&RepairKind, &History)| {
            let hours = history.hours.iter();
            let last_day = hours
                .filter(|(past, _)| is_of_last_day(**past, hour))
                .fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
            (last_day > 0).then(|| Repair {
                kind: *kind,
                detail: history.detail.clone(),
                at: history.at,
                last_day,
            })
        };
        self.repairs.iter().filter_map(of_kind).collect()
    }
}

/// The hour that runs and the 23 before it. One that a clock set back has put into the future is
/// none.
fn is_of_last_day(past: u64, hour: u64) -> bool {
    past <= hour && hour - past < HOURS_OF_DAY
}

fn now() -> u64 {
    // A clock before 1970 is as good as one that stands there.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = SECONDS_OF_HOUR;
    const NOON: u64 = 1_800_000 * HOUR;

    fn note(record: &mut Record, kind: RepairKind, now: u64) {
        record.note(kind, format!("at {now}"), now);
    }

    fn counts(record: &Record, now: u64) -> Vec<(RepairKind, u32)> {
        let repairs = record.of_last_day(now);
        let counts = repairs.into_iter();
        counts
            .map(|repair| (repair.kind, repair.last_day))
            .collect()
    }

    #[test]
    fn repairs_are_counted_for_a_day() {
        use RepairKind::{PluginMissing, PluginUnchained};
        let mut record = Record::default();
        note(&mut record, PluginUnchained, NOON);
        note(&mut record, PluginUnchained, NOON + 60);
        note(&mut record, PluginMissing, NOON + 2 * HOUR);
        assert_eq!(
            counts(&record, NOON + 3 * HOUR),
            [(PluginUnchained, 2), (PluginMissing, 1)]
        );
        let latest = &record.of_last_day(NOON + 3 * HOUR)[0];
        assert_eq!((latest.at, &*latest.detail), (NOON + 60, "at 6480000060"));
        note(&mut record, PluginUnchained, NOON + 23 * HOUR);
        assert_eq!(
            counts(&record, NOON + 24 * HOUR),
            [(PluginUnchained, 1), (PluginMissing, 1)]
        );
        assert_eq!(counts(&record, NOON + 26 * HOUR), [(PluginUnchained, 1)]);
        assert_eq!(counts(&record, NOON + 47 * HOUR), []);
        assert_eq!(counts(&record, NOON - HOUR), [], "the clock was set back");
    }

    #[test]
    fn record_does_not_grow_with_repairs() {
        let mut record = Record::default();
        for number in 0..100_000 {
            note(&mut record, RepairKind::PinsDeleted, NOON + 60 * number);
        }
        assert_eq!(record.repairs.len(), 1);
        let history = &record.repairs[&RepairKind::PinsDeleted];
        assert!(history.hours.len() <= 24);
        let now = NOON + 60 * 99_999;
        assert_eq!(record.of_last_day(now)[0].last_day, 23 * 60 + 40);
    }

    #[test]
    fn next_agent_goes_on_with_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = MetricsRegistry::new();
        let (repairs, mut told) = Repairs::open(dir.path(), &metrics);
        assert_eq!(
            (repairs.of_last_day(), repairs.chained_in()),
            (vec![], None)
        );
        let long = "x".repeat(10_000);
        repairs.note(RepairKind::PluginMissing, &long);
        repairs.note(RepairKind::Other, "counted by no metric, and no panic");
        repairs.set_chained_in("10-x.conflist");
        assert_eq!(told.try_recv().unwrap().kind, RepairKind::PluginMissing);

        let (next, _) = Repairs::open(dir.path(), &MetricsRegistry::new());
        let repair = &next.of_last_day()[0];
        assert_eq!(
            (repair.kind, repair.last_day),
            (RepairKind::PluginMissing, 1)
        );
        assert_eq!(repair.detail.len(), LONGEST_DETAIL);
        assert_eq!(next.chained_in().as_deref(), Some("10-x.conflist"));
        assert!(
            String::from_utf8(metrics.encode())
                .unwrap()
                .contains("mesh_agent_repairs_total{found=\"plugin-missing\"} 1")
        );
        // Half a file is none.
        std::fs::write(registry::repairs_path(dir.path()), "{").unwrap();
        let (fresh, _) = Repairs::open(dir.path(), &MetricsRegistry::new());
        assert_eq!(fresh.of_last_day(), []);
    }

    /// An agent may be killed at any time.
    #[test]
    fn each_repair_is_written_when_it_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let (repairs, _told) = Repairs::open(dir.path(), &MetricsRegistry::new());
        for number in 1..=2 {
            repairs.note(RepairKind::PinsDeleted, "all");
            let (next, _) = Repairs::open(dir.path(), &MetricsRegistry::new());
            assert_eq!(next.of_last_day()[0].last_day, number);
        }
    }

    #[test]
    fn repairs_beyond_the_queue_of_events_are_still_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (repairs, _told) = Repairs::open(dir.path(), &MetricsRegistry::new());
        for _ in 0..UNTOLD + 10 {
            repairs.note(RepairKind::PluginUnchained, "10-x.conflist");
        }
        assert_eq!(repairs.of_last_day()[0].last_day as usize, UNTOLD + 10);
    }

    #[test]
    fn kind_is_serialised_by_its_name_and_unknown_ones_are_read() {
        for kind in RepairKind::ALL {
            let name = format!("{:?}", kind.as_str());
            assert_eq!(serde_json::to_string(&kind).unwrap(), name);
            assert_eq!(serde_json::from_str::<RepairKind>(&name).unwrap(), kind);
        }
        let newer: RepairKind = serde_json::from_str("\"of-a-newer-agent\"").unwrap();
        assert_eq!(newer, RepairKind::Other);
    }
}
