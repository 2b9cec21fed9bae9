//! Joins what the watches report into batches.
//!
//! The first batch waits for every kind, so that nobody is told half of the truth. Later, changes
//! that come together are one batch: a Deployment that rolls writes pods and slices in bursts, and
//! each batch computes what it touches anew. While the index is busy with one batch the next one
//! grows, and of an object that changed twice only the newest version is in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::watch::Message;
use crate::{
    model::{Key, Kind, Object},
    source::{Batch, Change},
};

/// How long a batch waits for more after its first change. Long enough for the events of one write
/// of a controller, which arrive on several watches; too short to be noticed beside the tens of
/// milliseconds that an API server takes to tell.
const SETTLE: Duration = Duration::from_millis(10);

/// What was reported and not sent yet.
struct Pending {
    /// Kinds whose first list has not come.
    waiting: BTreeSet<Kind>,
    /// The newest state of each object; nothing for one that is gone.
    objects: BTreeMap<Key, Option<Object>>,
    /// The first batch has been sent.
    started: bool,
}

/// Until the watches end or nobody listens any more.
pub(super) async fn run(
    kinds: BTreeSet<Kind>,
    mut messages: mpsc::Receiver<Message>,
    batches: mpsc::Sender<Batch>,
) {
    let mut pending = Pending::new(kinds);
    let mut due: Option<Instant> = None;
    loop {
        // Both ends are waited for at once: a full channel of batches must not keep messages from
        // being merged.
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else {
                    return;
                };
                pending.add(message);
                if pending.is_due() {
                    due.get_or_insert_with(|| Instant::now() + SETTLE);
                }
            }
            permit = settled(due, &batches), if due.is_some() => {
                let Ok(permit) = permit else {
                    return;
                };
                permit.send(pending.take());
                due = None;
            }
        }
    }
}

async fn settled(
    due: Option<Instant>,
    batches: &mpsc::Sender<Batch>,
) -> Result<mpsc::Permit<'_, Batch>, mpsc::error::SendError<()>> {
    if let Some(due) = due {
        sleep_until(due).await;
    }
    batches.reserve().await
}

impl Pending {
    fn new(kinds: BTreeSet<Kind>) -> Self {
        Self {
            waiting: kinds,
            objects: BTreeMap::new(),
            started: false,
        }
    }

    fn add(&mut self, message: Message) {
        for change in message.changes {
            match change {
                Change::Apply(object) => {
                    self.objects.insert(object.key(), Some(object));
                }
                Change::Delete(key) => {
                    self.objects.insert(key, None);
                }
                Change::Restarted(objects) => {
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

    fn take(&mut self) -> Batch {
        let objects = std::mem::take(&mut self.objects);
        if !std::mem::replace(&mut self.started, true) {
            return vec![Change::Restarted(objects.into_values().flatten().collect())];
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
