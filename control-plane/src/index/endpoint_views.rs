//! The watched endpoints of Services, for the index of the destination service.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use mesh_objects::store::{ChangeSet, Store};
use tokio::sync::watch;
use tokio::time::Instant;

use super::selection::{EndpointsKey, NodesOfServices, Selection};
use super::services::{self, Before, EndpointSet};
use super::settings::DestinationSettings;
use super::version::Version;
use super::views::Views;

/// The watched endpoints by client. Clients with the same selection share versions, so that
/// endpoints are computed and encoded once for a zone instead of once for each node.
#[derive(Debug, Default)]
pub(super) struct EndpointViews {
    views: Views<EndpointsKey, Version<EndpointSet>>,
    /// The current version of each selection, for new views. Versions without a view are dropped.
    current: HashMap<Selection, Weak<Version<EndpointSet>>>,
}

impl EndpointViews {
    pub(super) fn watch(
        &mut self,
        store: &Store,
        settings: &DestinationSettings,
        key: EndpointsKey,
    ) -> watch::Receiver<Arc<Version<EndpointSet>>> {
        let Self { views, current } = self;
        let receiver = views.watch(key, |key| {
            let selection = Selection::new(store, key, &mut NodesOfServices::default());
            let shared = current.get(&selection).and_then(Weak::upgrade);
            shared.unwrap_or_else(|| {
                let set = services::endpoints(store, settings, &selection, None);
                let version = Arc::new(Version::new(set));
                current.insert(selection, Arc::downgrade(&version));
                version
            })
        });
        // Clients select any number of ports, which have a selection each.
        if current.len() > 2 * views.len() + MIN_SELECTIONS {
            current.retain(|_, version| version.strong_count() > 0);
        }
        receiver
    }

    /// Recomputes the endpoints that changes of the store affect, and publishes the sets that
    /// differ. `at` is when the changes were reported. The endpoints of a Service that has members
    /// now end: its clients watch the members' instead.
    pub(super) fn refresh(
        &mut self,
        store: &Store,
        settings: &DestinationSettings,
        changes: &ChangeSet,
        at: Instant,
    ) {
        let Self { views, current } = self;
        let mut replaced: HashMap<Selection, Arc<Version<EndpointSet>>> = HashMap::new();
        let mut nodes = NodesOfServices::default();
        views.end(|key| changes.affects_endpoints(&key.service) && store.has_members(&key.service));
        views.replace(
            |key| changes.affects_endpoints(&key.service),
            |key, version| {
                let selection = Selection::new(store, key, &mut nodes);
                let after = replaced.entry(selection).or_insert_with_key(|selection| {
                    // The version of the selection, which this view may be new to.
                    let last = current.get(selection).and_then(Weak::upgrade);
                    let last = last.unwrap_or_else(|| version.clone());
                    let set = &**last.value();
                    let before = Some(Before { set, changes });
                    let set = services::endpoints(store, settings, selection, before);
                    if set == **last.value() {
                        last
                    } else {
                        Arc::new(Version::changed(set, at))
                    }
                });
                after.clone()
            },
        );
        // A stream may still hold an old version, so versions without a view must be removed.
        current.retain(|it, version| {
            !changes.affects_endpoints(&it.service) && version.strong_count() > 0
        });
        let after = replaced.iter();
        current.extend(after.map(|(it, version)| (it.clone(), Arc::downgrade(version))));
    }

    pub(super) fn len(&self) -> usize {
        self.views.len()
    }
}

/// Selections without a view are removed when all selections outnumber twice the views by more than
/// this.
const MIN_SELECTIONS: usize = 64;

#[cfg(test)]
mod tests;
