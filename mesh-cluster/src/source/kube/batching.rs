//! Merges the changes that watches report into batches.
//!
//! The first batch waits for every kind, so that the index is never incomplete. Later, concurrent
//! changes are merged into one batch: a rollout changes pods and slices in bursts, and the index
//! recomputes the affected values for each batch. While the index applies a batch, the next one
//! collects changes, with only the current version of each object.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_objects::model::{Key, Kind, Object};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::watch::WatchMessage;
use crate::source::{Batch, Change, Received};

/// How long a batch collects changes after the first one. Enough for the events of one operation of
/// a controller, which arrive on several watches, and small compared to the tens of milliseconds
/// until an API server reports a change.
const SETTLE: Duration = Duration::from_millis(10);

/// Changes that have been reported and not been sent.
struct PendingBatch {
    /// The kinds without a complete list.
    waiting: BTreeSet<Kind>,
    /// The current version of each changed object; `None` for a deleted one.
    objects: BTreeMap<Key, Option<Object>>,
    /// Whether the first batch has been sent.
    started: bool,
}

/// Runs until the watches exit or the receiver of batches is dropped.
pub(super) async fn run(
    kinds: BTreeSet<Kind>,
    mut messages: mpsc::Receiver<WatchMessage>,
    batches: mpsc::Sender<Received>,
) {
    let mut pending = PendingBatch::new(kinds);
    // When the first of the pending changes was reported.
    let mut since: Option<Instant> = None;
    loop {
        // Both channels are awaited concurrently, so that messages are merged while the channel of
        // batches is full.
        // The batch first: messages may always be ready.
        tokio::select! {
            biased;
            permit = settled(since, &batches), if since.is_some() => {
                let (Ok(permit), Some(at)) = (permit, since.take()) else {
                    return;
                };
                let batch = pending.take_batch();
                permit.send(Received { batch, at });
            }
            message = messages.recv() => {
                let Some(message) = message else {
                    return;
                };
                pending.add(message);
                if pending.is_due() {
                    since.get_or_insert_with(Instant::now);
                }
            }
        }
    }
}

async fn settled(
    since: Option<Instant>,
    batches: &mpsc::Sender<Received>,
) -> Result<mpsc::Permit<'_, Received>, mpsc::error::SendError<()>> {
    if let Some(since) = since {
        sleep_until(since + SETTLE).await;
    }
    batches.reserve().await
}

impl PendingBatch {
    fn new(kinds: BTreeSet<Kind>) -> Self {
        Self {
            waiting: kinds,
            objects: BTreeMap::new(),
            started: false,
        }
    }

    fn add(&mut self, message: WatchMessage) {
        for change in message.changes {
            match change {
                Change::Apply(object) => {
                    self.objects.insert(object.key(), Some(object));
                }
                Change::Delete(key) => {
                    self.objects.insert(key, None);
                }
                Change::Replace(objects) => {
                    let new = objects
                        .into_iter()
                        .map(|object| (object.key(), Some(object)));
                    self.objects.extend(new);
                }
            }
        }
        if message.complete {
            self.waiting.remove(&message.kind);
        }
    }

    fn is_due(&self) -> bool {
        self.waiting.is_empty() && (!self.started || !self.objects.is_empty())
    }

    fn take_batch(&mut self) -> Batch {
        let objects = std::mem::take(&mut self.objects);
        if !std::mem::replace(&mut self.started, true) {
            return vec![Change::Replace(objects.into_values().flatten().collect())];
        }
        let change = |(key, object): (Key, Option<Object>)| match object {
            Some(object) => Change::Apply(object),
            None => Change::Delete(key),
        };
        objects.into_iter().map(change).collect()
    }
}

#[cfg(test)]
mod tests;
