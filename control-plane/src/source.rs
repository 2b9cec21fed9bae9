//! Where objects come from: the one seam between the cluster and the index.
//!
//! A source is a task that sends batches of [`Change`]s. The first batch of a source is complete
//! ([`Change::Restarted`]); from then on it sends what changed. Everything behind this seam is the
//! same whether objects come from folders ([`local`]) or from an API server ([`kube`]).

use tokio::sync::mpsc;

use crate::model::{Key, Object};

pub(crate) mod kube;
pub mod local;
pub(crate) mod manifest;

/// One change to the set of objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new object, or a new version of one.
    Apply(Object),
    Delete(Key),
    /// Exactly these objects exist; what else was known is gone.
    Restarted(Vec<Object>),
}

/// Changes that belong together and are applied before anything is published.
pub type Batch = Vec<Change>;

/// Batches wait here while the index works on one. A source that finds the channel full waits: it
/// compares states, so nothing is lost by that.
const CHANNEL_CAPACITY: usize = 16;

pub fn channel() -> (mpsc::Sender<Batch>, mpsc::Receiver<Batch>) {
    mpsc::channel(CHANNEL_CAPACITY)
}
