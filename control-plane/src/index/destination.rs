//! The index of the destination service.

use std::sync::Arc;

use mesh_cluster::source::{Batch, Received};
use mesh_core::profile::Profile;
use mesh_objects::model::Name;
use mesh_objects::store::{ChangeSet, Store};
use tokio::sync::watch;

use super::endpoint_views::EndpointViews;
use super::membership::Membership;
use super::profile::{self, ProfileError, ProfileKey, ProfileTarget};
use super::selection::{EndpointsKey, NodesOfServices, Selection};
use super::services::{self, EndpointSet};
use super::settings::DestinationSettings;
use super::version::Version;
use super::views::Views;

/// The endpoints and profiles that proxies watch.
#[derive(Debug)]
pub struct DestinationIndex {
    settings: DestinationSettings,
    store: Store,
    endpoints: EndpointViews,
    profiles: Views<ProfileKey, Version<Profile>>,
    // Incremented by each change, so that streams with an uncached value check whether it can be
    // cached now.
    generation: watch::Sender<Arc<u64>>,
}

/// A value for a client.
#[derive(Debug)]
pub enum Subscription<V> {
    /// The value is updated as long as it is watched.
    Cached(watch::Receiver<Arc<Version<V>>>),
    /// The cluster has no object with this name or address. Nothing is cached, because clients can
    /// send any number of these. The value is valid until the name or address exists, which must be
    /// checked after each change.
    Uncached {
        value: Version<V>,
        generation: watch::Receiver<Arc<u64>>,
    },
}

/// Why the endpoints of a Service cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointsError {
    #[error("no such service: {0}")]
    NoSuchService(Name),
    #[error("service {0} is an ExternalName service")]
    ExternalName(Name),
}

impl DestinationIndex {
    pub fn new(settings: DestinationSettings) -> Self {
        Self {
            settings,
            store: Store::default(),
            endpoints: EndpointViews::default(),
            profiles: Views::default(),
            generation: watch::Sender::default(),
        }
    }

    pub fn apply(&mut self, batch: Batch) {
        self.apply_received(Received::now(batch));
    }

    pub(crate) fn apply_received(&mut self, received: Received) {
        let changes = self.store.apply(received.batch);
        if changes.is_empty() {
            return;
        }
        let Self {
            settings,
            store,
            endpoints,
            profiles,
            generation,
        } = self;
        endpoints.refresh(store, settings, &changes, received.at);
        profiles.refresh(
            |key| match &key.target {
                // Any changed object may have, or have had, the address.
                ProfileTarget::Addr(_) => true,
                ProfileTarget::Service { service, .. } => {
                    changes.namespaces.contains(&key.client_namespace)
                        || changes.namespaces.contains(&service.namespace)
                }
                ProfileTarget::Instance { service, .. } => affects_instances(&changes, service),
                ProfileTarget::External { .. } => {
                    changes.namespaces.contains(&key.client_namespace)
                }
            },
            |key| {
                let profile = profile::profile(store, settings, key);
                let changed = |profile| Version::changed(profile, received.at);
                profile.ok().map(changed)
            },
        );
        generation.send_modify(|count| *count = Arc::new(**count + 1));
    }

    /// Returns the own endpoints of a Service. A client on an unknown node, or of another cluster,
    /// gets the same endpoints as a client without a node. Without IPv6, the family of the client
    /// makes no difference.
    pub fn endpoints(
        &mut self,
        mut key: EndpointsKey,
    ) -> Result<Subscription<EndpointSet>, EndpointsError> {
        match self.store.service(&key.service) {
            None => return Err(EndpointsError::NoSuchService(key.service)),
            Some(service) if service.external_name => {
                return Err(EndpointsError::ExternalName(key.service));
            }
            Some(_) => {}
        }
        let is_own = self.settings.cluster.is_none();
        key.node = key.node.filter(|node| is_own && self.store.has_node(node));
        key.family = key.family.filter(|_| self.settings.ipv6);
        Ok(if self.has_endpoints(&key) {
            let Self {
                settings, store, ..
            } = self;
            Subscription::Cached(self.endpoints.watch(store, settings, key))
        } else {
            let mut nodes = NodesOfServices::default();
            let selection = Selection::new(&self.store, &key, &mut nodes);
            let set = services::endpoints(&self.store, &self.settings, &selection, None);
            self.uncached(Version::new(set))
        })
    }

    /// Returns the Services that have the endpoints of a Service; `None` if it does not exist or
    /// has its own.
    pub(crate) fn membership(&self, key: &EndpointsKey) -> Option<Membership> {
        Membership::new(&self.store, key)
    }

    /// Returns the number of changes.
    pub(crate) fn generation(&self) -> watch::Receiver<Arc<u64>> {
        self.generation.subscribe()
    }

    pub fn profile(&mut self, key: ProfileKey) -> Result<Subscription<Profile>, ProfileError> {
        let value = Version::new(profile::profile(&self.store, &self.settings, &key)?);
        Ok(if self.has_profile(&key) {
            Subscription::Cached(self.profiles.watch(key, |_key| Arc::new(value)))
        } else {
            self.uncached(value)
        })
    }

    /// Returns whether a Service, or the instance of it, has endpoints of its own.
    pub fn has_endpoints(&self, key: &EndpointsKey) -> bool {
        let hostname = key.hostname.as_ref();
        !self.store.has_members(&key.service)
            && hostname.is_none_or(|hostname| self.store.has_instance(&key.service, hostname))
    }

    pub fn has_profile(&self, key: &ProfileKey) -> bool {
        match &key.target {
            ProfileTarget::Addr(addr) => self.store.has_ip(addr.ip()),
            ProfileTarget::External { host, .. } => {
                profile::of_external(&self.store, host, &key.client_namespace).is_some()
            }
            // Without the Service or the endpoint there is no profile.
            ProfileTarget::Service { .. } | ProfileTarget::Instance { .. } => true,
        }
    }

    fn uncached<V>(&self, value: Version<V>) -> Subscription<V> {
        Subscription::Uncached {
            value,
            generation: self.generation.subscribe(),
        }
    }

    /// Returns the numbers of watched sets of endpoints and profiles.
    pub fn watched(&self) -> (usize, usize) {
        (self.endpoints.len(), self.profiles.len())
    }

    pub fn settings(&self) -> &DestinationSettings {
        &self.settings
    }
}

/// Whether the profile of a Service's endpoint may have changed. It is the profile of a pod.
fn affects_instances(changes: &ChangeSet, service: &Name) -> bool {
    changes.affects_endpoints(service)
        || changes.namespaces.contains(&service.namespace)
        || changes
            .pods
            .iter()
            .any(|pod| pod.namespace == service.namespace)
}

#[cfg(test)]
mod tests;
