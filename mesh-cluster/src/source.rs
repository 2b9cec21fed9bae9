//! Sources of objects: the interface between the cluster and the index.
//!
//! A source is a task that sends batches of [`Change`]s. Its first batch is complete
//! ([`Change::Replace`]); later ones are incremental. The index does not depend on whether objects
//! come from directories ([`local`]) or from an API server ([`kube`]).

use tokio::sync::mpsc;
use tokio::time::Instant;

pub mod kube;
pub mod local;
pub mod manifest;

pub use mesh_objects::store::Change;

/// Changes that are applied together before values are published.
pub type Batch = Vec<Change>;

/// A batch, as it arrives at the index.
#[derive(Debug)]
pub struct Received {
    pub batch: Batch,
    /// When the first of the changes was reported to this process. A metric exports the time until
    /// streams have sent the resulting messages.
    pub at: Instant,
}

impl Received {
    pub fn now(batch: Batch) -> Self {
        let at = Instant::now();
        Self { batch, at }
    }
}

/// A source blocks while the channel is full. It compares states, so it loses no changes.
const CHANNEL_CAPACITY: usize = 16;

pub fn channel() -> (mpsc::Sender<Received>, mpsc::Receiver<Received>) {
    mpsc::channel(CHANNEL_CAPACITY)
}
