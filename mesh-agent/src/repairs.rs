//! Repairs of the agent: counted in a metric, recorded for a day, and queued for events.
//!
//! Without this record, a program that removes mesh-cni repeatedly, or an administrator who deletes
//! parts of the mesh, would remain unnoticed as long as the agent repairs faster. The record is a
//! file alongside the pods' records, so that it outlives the agent; it has a few hundred bytes for
//! each kind of repair, however many there are. The tasks and the thread that repair write it; the
//! agent's status reads it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use mesh_core::node::{Repair, RepairKind};
use mesh_runtime::log::chain;
use mesh_runtime::metrics::{Counter, Labels, Registry as MetricsRegistry};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::registry::{self, RegistryError};

/// Events that wait for the API server; further ones are dropped.
const EVENT_QUEUE_LENGTH: usize = 64;
const SECONDS_PER_HOUR: u64 = 3600;
const HOURS_PER_DAY: u64 = 24;
/// Longest recorded detail, in characters; some contain an error of another program.
const MAX_DETAIL_CHARS: usize = 300;

/// A handle; all clones share one record.
#[derive(Clone, Debug)]
pub struct Repairs {
    shared: Arc<SharedRepairs>,
}

#[derive(Debug)]
struct SharedRepairs {
    path: PathBuf,
    counters: BTreeMap<RepairKind, Counter>,
    events: mpsc::Sender<RepairEvent>,
    /// Locked while the record is changed and written.
    record: Mutex<RepairLog>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairEvent {
    pub kind: RepairKind,
    pub detail: String,
}

/// Pure: each call passes the time, in seconds since the Unix epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RepairLog {
    /// The CNI configuration that last contained mesh-cni: an entry missing there is damage.
    #[serde(default)]
    chained_in: Option<String>,
    #[serde(default)]
    repairs: BTreeMap<RepairKind, History>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    at: u64,
    detail: String,
    /// Repairs per hour since the epoch, for the hours of the last day that had any.
    hours: BTreeMap<u64, u32>,
}

impl Repairs {
    /// Continues the record of an earlier agent in the state directory. The receiver gets the
    /// repairs to publish as events.
    pub fn open(
        state_dir: &Path,
        metrics: &MetricsRegistry,
    ) -> (Self, mpsc::Receiver<RepairEvent>) {
        let family = metrics.counter_family(
            "mesh_agent_repairs_total",
            "Repairs of the mesh on this node, and of the redirection of its pods, by what was found damaged",
        );
        let counter = |kind: RepairKind| family.with(&Labels::new().with("found", kind.as_str()));
        let path = registry::repairs_path(state_dir);
        let record = registry::read_json(&path).unwrap_or_else(|error: RegistryError| {
            tracing::warn!(
                error = chain(&error),
                "Cannot read the record of repairs; starting a new one"
            );
            None
        });
        let (events, event_receiver) = mpsc::channel(EVENT_QUEUE_LENGTH);
        let shared = SharedRepairs {
            path,
            counters: RepairKind::ALL.map(|kind| (kind, counter(kind))).into(),
            events,
            record: Mutex::new(record.unwrap_or_default()),
        };
        let repairs = Self {
            shared: Arc::new(shared),
        };
        (repairs, event_receiver)
    }

    pub fn record(&self, kind: RepairKind, detail: &str) {
        let detail: String = detail.chars().take(MAX_DETAIL_CHARS).collect();
        if let Some(counter) = self.shared.counters.get(&kind) {
            counter.inc();
        }
        let event = RepairEvent {
            kind,
            detail: detail.clone(),
        };
        if let Err(mpsc::error::TrySendError::Full(event)) = self.shared.events.try_send(event) {
            tracing::warn!(kind = %event.kind, "Dropped the event of a repair: too many wait for the API server");
        }
        let mut record = self.shared.record.lock();
        record.record(kind, detail, now());
        self.write(&record);
    }

    pub fn last_day(&self) -> Vec<Repair> {
        self.shared.record.lock().last_day(now())
    }

    /// Returns the CNI configuration that last contained mesh-cni, also under an earlier agent.
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

    /// A record that cannot be written is kept in memory.
    fn write(&self, record: &RepairLog) {
        if let Err(error) = registry::write_json(&self.shared.path, record) {
            tracing::warn!(error = chain(&error), "Cannot write the record of repairs");
        }
    }
}

impl RepairLog {
    fn record(&mut self, kind: RepairKind, detail: String, now: u64) {
        let hour = now / SECONDS_PER_HOUR;
        let history = self.repairs.entry(kind).or_default();
        history.at = now;
        history.detail = detail;
        history
            .hours
            .retain(|past, _| is_within_last_day(*past, hour));
        let count = history.hours.entry(hour).or_default();
        *count = count.saturating_add(1);
    }

    fn last_day(&self, now: u64) -> Vec<Repair> {
        let hour = now / SECONDS_PER_HOUR;
        let of_kind = |(kind, history): (&RepairKind, &History)| {
            let hours = history.hours.iter();
            let last_day = hours
                .filter(|(past, _)| is_within_last_day(**past, hour))
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

/// Returns whether `past` is the current hour or one of the 23 before it. An hour in the future,
/// after the clock was set back, is not.
fn is_within_last_day(past: u64, hour: u64) -> bool {
    past <= hour && hour - past < HOURS_PER_DAY
}

fn now() -> u64 {
    // A clock before 1970 reads as 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = SECONDS_PER_HOUR;
    const NOON: u64 = 1_800_000 * HOUR;

    fn record_at(record: &mut RepairLog, kind: RepairKind, now: u64) {
        record.record(kind, format!("at {now}"), now);
    }

    fn counts(record: &RepairLog, now: u64) -> Vec<(RepairKind, u32)> {
        let repairs = record.last_day(now);
        let counts = repairs.into_iter();
        counts
            .map(|repair| (repair.kind, repair.last_day))
            .collect()
    }

    #[test]
    fn repairs_are_counted_for_24_hours() {
        use RepairKind::{PluginMissing, PluginUnchained};
        let mut record = RepairLog::default();
        record_at(&mut record, PluginUnchained, NOON);
        record_at(&mut record, PluginUnchained, NOON + 60);
        record_at(&mut record, PluginMissing, NOON + 2 * HOUR);
        let expected = [(PluginUnchained, 2), (PluginMissing, 1)];
        assert_eq!(counts(&record, NOON + 3 * HOUR), expected);
        let latest = &record.last_day(NOON + 3 * HOUR)[0];
        assert_eq!((latest.at, &*latest.detail), (NOON + 60, "at 6480000060"));
        record_at(&mut record, PluginUnchained, NOON + 23 * HOUR);
        let expected = [(PluginUnchained, 1), (PluginMissing, 1)];
        assert_eq!(counts(&record, NOON + 24 * HOUR), expected);
        assert_eq!(counts(&record, NOON + 26 * HOUR), [(PluginUnchained, 1)]);
        assert_eq!(counts(&record, NOON + 47 * HOUR), []);
        assert_eq!(counts(&record, NOON - HOUR), [], "the clock was set back");
    }

    #[test]
    fn record_size_is_independent_of_number_of_repairs() {
        let mut record = RepairLog::default();
        for number in 0..100_000 {
            record_at(&mut record, RepairKind::PinsDeleted, NOON + 60 * number);
        }
        assert_eq!(record.repairs.len(), 1);
        let history = &record.repairs[&RepairKind::PinsDeleted];
        assert!(history.hours.len() <= 24);
        let now = NOON + 60 * 99_999;
        assert_eq!(record.last_day(now)[0].last_day, 23 * 60 + 40);
    }

    #[test]
    fn next_agent_continues_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let metrics = MetricsRegistry::new();
        let (repairs, mut event_receiver) = Repairs::open(dir.path(), &metrics);
        assert_eq!((repairs.last_day(), repairs.chained_in()), (vec![], None));
        let long = "x".repeat(10_000);
        repairs.record(RepairKind::PluginMissing, &long);
        repairs.record(RepairKind::Other, "has no metric");
        repairs.set_chained_in("10-x.conflist");
        let event = event_receiver.try_recv().unwrap();
        assert_eq!(event.kind, RepairKind::PluginMissing);

        let (next, _) = Repairs::open(dir.path(), &MetricsRegistry::new());
        let repair = &next.last_day()[0];
        assert_eq!(repair.kind, RepairKind::PluginMissing);
        assert_eq!(repair.last_day, 1);
        assert_eq!(repair.detail.len(), MAX_DETAIL_CHARS);
        assert_eq!(next.chained_in().as_deref(), Some("10-x.conflist"));
        let text = String::from_utf8(metrics.encode()).unwrap();
        assert!(text.contains("mesh_agent_repairs_total{found=\"plugin-missing\"} 1"));
        // A truncated file is ignored.
        std::fs::write(registry::repairs_path(dir.path()), "{").unwrap();
        let (fresh, _) = Repairs::open(dir.path(), &MetricsRegistry::new());
        assert_eq!(fresh.last_day(), []);
    }

    #[test]
    fn each_repair_is_written_immediately() {
        let dir = tempfile::tempdir().unwrap();
        let (repairs, _events) = Repairs::open(dir.path(), &MetricsRegistry::new());
        for number in 1..=2 {
            repairs.record(RepairKind::PinsDeleted, "all");
            let (next, _) = Repairs::open(dir.path(), &MetricsRegistry::new());
            assert_eq!(next.last_day()[0].last_day, number);
        }
    }

    #[test]
    fn repairs_beyond_event_queue_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (repairs, _events) = Repairs::open(dir.path(), &MetricsRegistry::new());
        for _ in 0..EVENT_QUEUE_LENGTH + 10 {
            repairs.record(RepairKind::PluginUnchained, "10-x.conflist");
        }
        let count = repairs.last_day()[0].last_day as usize;
        assert_eq!(count, EVENT_QUEUE_LENGTH + 10);
    }

    #[test]
    fn kinds_serialise_by_name_and_unknown_names_are_accepted() {
        for kind in RepairKind::ALL {
            let name = format!("{:?}", kind.as_str());
            assert_eq!(serde_json::to_string(&kind).unwrap(), name);
            assert_eq!(serde_json::from_str::<RepairKind>(&name).unwrap(), kind);
        }
        let newer: RepairKind = serde_json::from_str("\"of-a-newer-agent\"").unwrap();
        assert_eq!(newer, RepairKind::Other);
    }
}
