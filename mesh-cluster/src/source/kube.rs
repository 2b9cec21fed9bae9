//! The source with watches of an API server.
//!
//! ```text
//!   API server ──▶ watch (a task per kind) ──▶ table of converted objects ──▶ batching ──▶ Batch
//! ```
//!
//! The task of a kind finds the served version of its API, lists and watches the objects, and lists
//! again when required, also when the API server's state is older than before ([`restored`]). It
//! converts each object separately, so that an invalid one is logged and its last valid version
//! stays. Its table compares objects: a list without changes has no effect, so that a restarted
//! watch does not change the index. [`batching`] waits for the first list of every served kind, and
//! later merges concurrent changes.
//!
//! While the API server is unreachable nothing is sent, so the last known state stays in effect.

use std::collections::BTreeSet;

use kube::Client;
use mesh_objects::model::Kind;
use mesh_runtime::metrics::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::kinds::WatchedKind;
use self::metrics::Metrics;
use self::seen::SeenVersions;
use self::watch::{KindWatch, WatchMessage};
use super::Received;

mod batching;
mod definitions;
pub mod kinds;
mod metrics;
mod notices;
mod received;
mod restored;
mod seen;
mod served;
mod table;
mod watch;

/// The capacity of the channel from the watches to the batching task.
const CHANNEL_CAPACITY: usize = 64;

/// An API server and the kinds to watch.
pub struct KubeSource {
    client: Client,
    kinds: &'static [WatchedKind],
    registry: Registry,
    watches_definitions: bool,
}

impl KubeSource {
    pub fn new(client: Client, kinds: &'static [WatchedKind], registry: &Registry) -> Self {
        Self {
            client,
            kinds,
            registry: registry.clone(),
            watches_definitions: kinds::are_defined(kinds),
        }
    }

    /// For credentials that may not watch definitions: polling alone finds a new API.
    #[must_use]
    pub fn without_definitions(self) -> Self {
        Self {
            watches_definitions: false,
            ..self
        }
    }

    /// Sends everything when all served kinds have been listed, and then changes, until the
    /// receiver is dropped or a task exits.
    pub async fn run(self, batches: mpsc::Sender<Received>) {
        let (messages, received) = mpsc::channel::<WatchMessage>(CHANNEL_CAPACITY);
        let (definitions, restorations) = (notices::Sender::new(), notices::Sender::new());
        let metrics = Metrics::new(&self.registry);
        let seen = SeenVersions::default();
        let mut parts = JoinSet::new();
        if self.watches_definitions {
            let (client, changed) = (self.client.clone(), definitions.clone());
            parts.spawn(definitions::watch_definitions(client, changed));
        }
        if let Some(watched) = self.kinds.iter().find(|watched| watched.api().built_in) {
            let (client, restored) = (self.client.clone(), restorations.clone());
            let check = restored::watch_version(client, watched, seen.clone(), restored);
            parts.spawn(check);
        }
        for watched in self.kinds {
            let watch = KindWatch::new(
                self.client.clone(),
                watched,
                metrics.of(watched.kind),
                messages.clone(),
                seen.clone(),
                definitions.subscribe(),
                restorations.subscribe(),
            );
            parts.spawn(watch.run());
        }
        drop((messages, definitions, restorations));
        let kinds: BTreeSet<Kind> = self.kinds.iter().map(|watched| watched.kind).collect();
        tokio::select! {
            biased;
            () = batching::run(kinds, received, batches) => {}
            Some(ended) = parts.join_next() => {
                let error = ended.err().map(tracing::field::display);
                tracing::error!(error, "A watch of the API server ended");
            }
        }
    }
}
