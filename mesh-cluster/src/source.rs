//! Sources of objects: the interface between the cluster and the index.
//!
//! A source is a task that sends batches of [`Change`]s. Its first batch is complete
//! ([`Change::Replace`]); later ones are incremental. The index does not depend on whether objects
//! come from directories ([`local`]) or from an API server ([`kube`]).

use mesh_objects::model::{Key, Object};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub mod kube;
pub mod local;
pub mod manifest;

/// A change of the set of objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new or changed object.
    Apply(Object),
    Delete(Key),
    /// Exactly these objects exist; all others have been deleted.
    Replace(Vec<Object>),
}

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
