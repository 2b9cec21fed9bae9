//! The linked clusters, each with an index of its objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::index::DestinationIndex;

/// The clusters whose objects have been read. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clusters(Arc<State>);

#[derive(Debug, Default)]
struct State {
    by_name: Mutex<BTreeMap<Arc<str>, Index>>,
    /// Notifies of clusters that join or leave, and of new indexes.
    changed: watch::Sender<()>,
}

type Index = Arc<Mutex<DestinationIndex>>;

impl Clusters {
    pub(super) fn get(&self, cluster: &str) -> Option<Index> {
        self.0.by_name.lock().get(cluster).cloned()
    }

    /// Adds a cluster, or replaces its index.
    pub(super) fn insert(&self, cluster: Arc<str>, index: Index) {
        self.0.by_name.lock().insert(cluster, index);
        self.0.changed.send_replace(());
    }

    pub(super) fn remove(&self, cluster: &str) {
        self.0.by_name.lock().remove(cluster);
        self.0.changed.send_replace(());
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    /// Returns the number of clusters.
    pub(crate) fn len(&self) -> usize {
        self.0.by_name.lock().len()
    }
}
