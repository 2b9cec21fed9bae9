//! The source with directories of manifests, which are polled several times a second.
//!
//! Polling is sufficient and simpler than file system events: a directory of some hundred files
//! costs a few hundred `stat` calls, files that are written on another file system or through a
//! bind mount are found too, and no event can be missed. A change counts when two polls find the
//! same, so that a file is not read while it is being written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mesh_objects::model::{Key, Kind, Object};
use mesh_runtime::metrics::{Gauge, Labels, Registry};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::{Batch, Change, Received};
use directory::Directory;

mod directory;

/// The poll interval. A change takes effect after two polls.
const INTERVAL: Duration = Duration::from_millis(150);

/// Directories of manifests. An object in several directories is read from the last one.
#[derive(Debug)]
pub struct DirectorySource {
    directories: Vec<Directory>,
    sent: BTreeMap<Key, Object>,
    invalid: Gauge,
}

impl DirectorySource {
    /// A document is of the first matching one of `kinds`; documents of other kinds are ignored.
    pub fn new(paths: Vec<PathBuf>, kinds: Vec<Kind>, registry: &Registry) -> Self {
        let kinds: Arc<[Kind]> = kinds.into();
        let invalid = registry.gauge_family(
            "source_broken_objects",
            "Invalid objects, files and directories of the source; the log lists each",
        );
        Self {
            directories: paths
                .into_iter()
                .map(|path| Directory::new(path, kinds.clone()))
                .collect(),
            sent: BTreeMap::new(),
            invalid: invalid.with(&Labels::new()),
        }
    }

    /// Sends everything when all directories have been read, and then changes, until the receiver
    /// is dropped.
    pub async fn run(mut self, batches: mpsc::Sender<Received>) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first = true;
        loop {
            ticks.tick().await;
            // File systems may block.
            let scan = tokio::task::spawn_blocking(move || {
                let batch = self.scan(first);
                (self, batch)
            });
            let batch;
            (self, batch) = match scan.await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::error!(%error, "Reading the source directories failed");
                    return;
                }
            };
            if batch.is_empty() {
                continue;
            }
            first = false;
            if batches.send(Received::now(batch)).await.is_err() {
                return;
            }
        }
    }

    /// Returns the changes since the last poll; at first all objects, when all directories have
    /// been read.
    fn scan(&mut self, first: bool) -> Batch {
        for directory in &mut self.directories {
            directory.scan();
        }
        let invalid = self
            .directories
            .iter()
            .map(Directory::invalid)
            .sum::<usize>();
        self.invalid.set(i64::try_from(invalid).unwrap_or(i64::MAX));
        if first && !self.directories.iter().all(Directory::has_been_read) {
            return Batch::new();
        }
        let mut objects: BTreeMap<Key, Object> = BTreeMap::new();
        for directory in &self.directories {
            for object in directory.objects() {
                objects.insert(object.key(), object.clone());
            }
        }
        let batch = if first {
            vec![Change::Replace(objects.values().cloned().collect())]
        } else {
            changes(&self.sent, &objects)
        };
        self.sent = objects;
        batch
    }
}

fn changes(before: &BTreeMap<Key, Object>, now: &BTreeMap<Key, Object>) -> Batch {
    let gone = before.keys().filter(|key| !now.contains_key(key));
    let new = now
        .iter()
        .filter(|(key, object)| before.get(key) != Some(object));
    gone.map(|key| Change::Delete(key.clone()))
        .chain(new.map(|(_, object)| Change::Apply(object.clone())))
        .collect()
}

#[cfg(test)]
mod tests;
