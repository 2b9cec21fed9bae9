//! The index of the destination service.

use std::sync::Arc;

use mesh_core::profile::Profile;
use tokio::sync::watch;

use super::{
    profile::{self, ProfileError, ProfileKey},
    services::{self, EndpointSet, EndpointsKey},
    settings::DestinationSettings,
    store::{Store, Touched},
    views::Views,
};
use crate::{model::Name, source::Batch};

#[derive(Debug)]
pub struct DestinationIndex {
    settings: DestinationSettings,
    store: Store,
    endpoints: Views<EndpointsKey, EndpointSet>,
    profiles: Views<ProfileKey, Profile>,
    // Counts the changes, for the streams whose value is not kept. They are woken and look whether
    // it is known by now.
    changes: watch::Sender<Arc<u64>>,
}

/// The answer to a client.
#[derive(Debug)]
pub enum Watched<V> {
    /// Kept up to date as long as it is watched.
    Kept(watch::Receiver<Arc<V>>),
    /// The cluster has nothing of this name or address, and clients can make up any number of them:
    /// nothing is kept. The value holds until the name or address is known, which can be asked
    /// after each change.
    Unknown {
        value: V,
        changes: watch::Receiver<Arc<u64>>,
    },
}

/// Why a Service has no endpoints to watch.
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
            endpoints: Views::default(),
            profiles: Views::default(),
            changes: watch::Sender::default(),
        }
    }

    pub fn apply(&mut self, batch: Batch) {
        let touched = self.store.apply(batch);
        if touched.is_empty() {
            return;
        }
        let Self {
            settings,
            store,
            endpoints,
            profiles,
            changes,
        } = self;
        endpoints.refresh(
            |key| affects_service(&touched, &key.service),
            |key| Some(services::endpoints(store, settings, key)),
        );
        profiles.refresh(
            |key| match key {
                // Any object may be the one that has, or had, the address.
                ProfileKey::Addr(_) => true,
                ProfileKey::Service { service, .. } | ProfileKey::Instance { service, .. } => {
                    affects_service(&touched, service)
                }
            },
            |key| profile::profile(store, settings, key).ok(),
        );
        changes.send_modify(|count| *count = Arc::new(**count + 1));
    }

    /// A client on a node that nothing is known of gets what a client without node gets.
    pub fn endpoints(
        &mut self,
        mut key: EndpointsKey,
    ) -> Result<Watched<EndpointSet>, EndpointsError> {
        match self.store.service(&key.service) {
            None => return Err(EndpointsError::NoSuchService(key.service)),
            Some(service) if service.external_name => {
                return Err(EndpointsError::ExternalName(key.service));
            }
            Some(_) => {}
        }
        key.node = key.node.filter(|node| self.store.knows_node(node));
        let value = services::endpoints(&self.store, &self.settings, &key);
        Ok(match self.knows_endpoints(&key) {
            true => Watched::Kept(self.endpoints.watch(key, value)),
            false => self.unknown(value),
        })
    }

    pub fn profile(&mut self, key: ProfileKey) -> Result<Watched<Profile>, ProfileError> {
        let value = profile::profile(&self.store, &self.settings, &key)?;
        Ok(match self.knows_profile(&key) {
            true => Watched::Kept(self.profiles.watch(key, value)),
            false => self.unknown(value),
        })
    }

    pub fn knows_endpoints(&self, key: &EndpointsKey) -> bool {
        let hostname = key.hostname.as_ref();
        hostname.is_none_or(|hostname| self.store.knows_instance(&key.service, hostname))
    }

    pub fn knows_profile(&self, key: &ProfileKey) -> bool {
        match key {
            ProfileKey::Addr(addr) => self.store.knows_ip(addr.ip()),
            // Without the Service or the endpoint there is no profile at all.
            ProfileKey::Service { .. } | ProfileKey::Instance { .. } => true,
        }
    }

    fn unknown<V>(&self, value: V) -> Watched<V> {
        Watched::Unknown {
            value,
            changes: self.changes.subscribe(),
        }
    }

    /// How many different values are watched: endpoints and profiles.
    pub fn watched(&self) -> (usize, usize) {
        (self.endpoints.len(), self.profiles.len())
    }

    pub fn settings(&self) -> &DestinationSettings {
        &self.settings
    }
}

/// Slices refer to pods of their own namespace, and Servers to pods of theirs; nodes are
/// everybody's.
fn affects_service(touched: &Touched, service: &Name) -> bool {
    touched.shared
        || touched.namespaces.contains(&service.namespace)
        || touched
            .pods
            .iter()
            .any(|pod| pod.namespace == service.namespace)
}

#[cfg(test)]
mod tests;
