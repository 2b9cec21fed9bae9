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
    }

    pub fn endpoints(
        &mut self,
        key: EndpointsKey,
    ) -> Result<watch::Receiver<Arc<EndpointSet>>, EndpointsError> {
        match self.store.service(&key.service) {
            None => return Err(EndpointsError::NoSuchService(key.service)),
            Some(service) if service.external_name => {
                return Err(EndpointsError::ExternalName(key.service));
            }
            Some(_) => {}
        }
        let value = services::endpoints(&self.store, &self.settings, &key);
        Ok(self.endpoints.watch(key, value))
    }

    pub fn profile(
        &mut self,
        key: ProfileKey,
    ) -> Result<watch::Receiver<Arc<Profile>>, ProfileError> {
        let value = profile::profile(&self.store, &self.settings, &key)?;
        Ok(self.profiles.watch(key, value))
    }

    /// How many different values are watched: endpoints and profiles.
    pub fn watched(&self) -> (usize, usize) {
        (self.endpoints.len(), self.profiles.len())
    }

    pub fn settings(&self) -> &DestinationSettings {
        &self.settings
    }
}

/// Slices refer to pods of their own namespace, and Servers to pods of theirs; nodes are everybody's.
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
