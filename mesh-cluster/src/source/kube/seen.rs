//! The highest version that the watch of each kind has seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::ApiResource;
use mesh_k8s::kinds::ObjectMeta;
use mesh_objects::model::Kind;
use parking_lot::Mutex;

/// The highest versions. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenVersions {
    // Written for each object and event, read once in 30 s.
    highest: Arc<Mutex<BTreeMap<Kind, Seen>>>,
}

/// The highest version of a kind.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) version: u64,
    pub(super) resource: ApiResource,
}

impl SeenVersions {
    /// Records the version of an object.
    pub(super) fn record(&self, kind: Kind, resource: &ApiResource, meta: &ObjectMeta) {
        let Some(version) = number(meta.resource_version.as_deref()) else {
            return;
        };
        let mut highest = self.highest.lock();
        let seen = highest.entry(kind).or_insert_with(|| Seen {
            version,
            resource: resource.clone(),
        });
        seen.version = seen.version.max(version);
    }

    /// Returns the highest of all kinds.
    pub(super) fn highest(&self) -> Option<Seen> {
        let highest = self.highest.lock();
        highest.values().max_by_key(|seen| seen.version).cloned()
    }

    /// Forgets all versions: they are of a state that is lost.
    pub(super) fn clear(&self) {
        self.highest.lock().clear();
    }
}

/// Returns a resource version as a number. One that is not a number is not compared.
pub(super) fn number(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}
