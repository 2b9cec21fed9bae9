//! The cluster source: watches of an API server.
//!
//! ```text
//!   API server ──▶ watch (one task a kind) ──▶ table: what the kind's objects mean ──▶ gather ──▶ Batch
//! ```
//!
//! A kind's task finds out under which version its API is served, lists, watches, and lists again
//! when it has to. It converts each object by itself, so that one that makes no sense is named and
//! its last good version stays. Its table compares: a list that says what was known leads to no
//! change at all, so that a watch that had to begin anew does not move the index. [`gather`] waits
//! for the first list of every kind that is served, and later joins changes that come together.
//!
//! While the API server is away nothing is sent, and so everything that was known stays in force.

use std::collections::BTreeSet;

use kube::Client;
use mesh_runtime::metrics::Registry;
use tokio::{
    sync::{mpsc, watch as latest},
    task::JoinSet,
};

use self::{
    kinds::Watched,
    metrics::Metrics,
    watch::{Message, Watch},
};
use super::Batch;
use crate::model::Kind;

mod definitions;
mod gather;
pub(crate) mod kinds;
mod metrics;
mod served;
mod table;
mod watch;

/// Messages of the watches wait here while they are gathered, which takes no time to speak of.
const CHANNEL_CAPACITY: usize = 64;

/// An API server and the kinds to follow there.
pub(crate) struct Cluster {
    client: Client,
    kinds: &'static [Watched],
    registry: Registry,
}

impl Cluster {
    pub(crate) fn new(client: Client, kinds: &'static [Watched], registry: &Registry) -> Self {
        Self {
            client,
            kinds,
            registry: registry.clone(),
        }
    }

    /// Sends everything once all kinds that are served have been listed, then what changes, until
    /// nobody listens any more or a part of this dies.
    pub(crate) async fn run(self, batches: mpsc::Sender<Batch>) {
        let (messages, received) = mpsc::channel::<Message>(CHANNEL_CAPACITY);
        let (changed, definitions) = latest::channel(());
        let metrics = Metrics::new(&self.registry);
        let mut parts = JoinSet::new();
        parts.spawn(definitions::follow(self.client.clone(), changed));
        for watched in self.kinds {
            let watch = Watch::new(
                self.client.clone(),
                watched,
                metrics.of(watched.kind),
                messages.clone(),
                definitions.clone(),
            );
            parts.spawn(watch.run());
        }
        drop(messages);
        let kinds: BTreeSet<Kind> = self.kinds.iter().map(|watched| watched.kind).collect();
        tokio::select! {
            () = gather::run(kinds, received, batches) => {}
            Some(ended) = parts.join_next() => {
                let error = ended.err().map(tracing::field::display);
                tracing::error!(error, "A watch of the API server ended");
            }
        }
    }
}
