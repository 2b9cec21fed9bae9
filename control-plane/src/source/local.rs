//! The local source: folders of manifests, looked at several times a second.
//!
//! Looking is enough and simpler than being told: a folder of some hundred files costs a few
//! hundred `stat` calls, files written on another file system or through a bind mount are seen too,
//! and a state that is compared cannot miss an event. A change counts once it has stood still for
//! one look, so that a file that is being written is not read half.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use mesh_runtime::metrics::{Gauge, Labels, Registry};
use tokio::{sync::mpsc, time::MissedTickBehavior};

use super::{Batch, Change};
use crate::model::{Key, Object};

mod folder;

use folder::Folder;

/// How often the folders are looked at. A change is in force after two looks.
const INTERVAL: Duration = Duration::from_millis(150);

/// Folders of manifests. Where an object is in several, the later folder wins.
#[derive(Debug)]
pub struct Folders {
    folders: Vec<Folder>,
    sent: BTreeMap<Key, Object>,
    broken: Gauge,
}

impl Folders {
    pub fn new(paths: Vec<PathBuf>, registry: &Registry) -> Self {
        let broken = registry.gauge_family(
            "source_broken_objects",
            "Objects, files and folders of the source that cannot be read now; the log names each",
        );
        Self {
            folders: paths.into_iter().map(Folder::new).collect(),
            sent: BTreeMap::new(),
            broken: broken.with(&Labels::new()),
        }
    }

    /// Sends everything once every folder has been read, then what changes, until nobody listens
    /// any more.
    pub async fn run(mut self, batches: mpsc::Sender<Batch>) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first = true;
        loop {
            ticks.tick().await;
            // File systems may block.
            let look = tokio::task::spawn_blocking(move || {
                let batch = self.look(first);
                (self, batch)
            });
            let batch;
            (self, batch) = match look.await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::error!(%error, "Reading the source folders failed");
                    return;
                }
            };
            if batch.is_empty() {
                continue;
            }
            first = false;
            if batches.send(batch).await.is_err() {
                return;
            }
        }
    }

    /// What changed since the last look; the first time everything, as soon as it can be read.
    fn look(&mut self, first: bool) -> Batch {
        for folder in &mut self.folders {
            folder.look();
        }
        let broken = self.folders.iter().map(Folder::broken).sum::<usize>();
        self.broken.set(i64::try_from(broken).unwrap_or(i64::MAX));
        if first && !self.folders.iter().all(Folder::has_been_read) {
            return Batch::new();
        }
        let mut objects: BTreeMap<Key, Object> = BTreeMap::new();
        for folder in &self.folders {
            for object in folder.objects() {
                objects.insert(object.key(), object.clone());
            }
        }
        let batch = if first {
            vec![Change::Restarted(objects.values().cloned().collect())]
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
