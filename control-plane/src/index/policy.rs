//! The index of the policy service.

use std::sync::Arc;

use mesh_core::policy::inbound::ServerPolicy;
use mesh_core::policy::outbound::{OutboundPolicy, Target};
use tokio::sync::watch;

use super::inbound;
use super::outbound::{self, OutboundError, OutboundKey};
use super::settings::PolicySettings;
use super::store::{ChangeSet, Store};
use super::views::Views;
use crate::model::Name;
use crate::source::Batch;

/// The inbound and outbound policies that proxies watch.
#[derive(Debug)]
pub struct PolicyIndex {
    settings: PolicySettings,
    store: Store,
    /// `None` if the pod has been deleted, which ends the streams.
    inbound: Views<InboundKey, Option<ServerPolicy>>,
    outbound: Views<OutboundKey, OutboundPolicy>,
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundKey {
    pub pod: Name,
    pub port: u16,
}

impl PolicyIndex {
    pub fn new(settings: PolicySettings) -> Self {
        Self {
            settings,
            store: Store::default(),
            inbound: Views::default(),
            outbound: Views::default(),
        }
    }

    pub fn apply(&mut self, batch: Batch) {
        let changes = self.store.apply(batch);
        if changes.is_empty() {
            return;
        }
        let Self {
            settings,
            store,
            inbound,
            outbound,
        } = self;
        inbound.refresh(
            |key| affects_pod(&changes, &key.pod),
            |key| Some(inbound::policy(store, settings, &key.pod, key.port)),
        );
        outbound.refresh(
            |key| affects_target(&changes, key),
            |key| Some(outbound::policy(store, settings, key)),
        );
    }

    /// Returns the policy of a pod's port; `None` if the pod does not exist.
    pub fn inbound(
        &mut self,
        key: InboundKey,
    ) -> Option<watch::Receiver<Arc<Option<ServerPolicy>>>> {
        let value = inbound::policy(&self.store, &self.settings, &key.pod, key.port)?;
        Some(self.inbound.watch(key, Some(value)))
    }

    /// Returns the policy of a destination for clients of a namespace.
    pub fn outbound(
        &mut self,
        target: &Target,
        client_namespace: &Arc<str>,
    ) -> Result<watch::Receiver<Arc<OutboundPolicy>>, OutboundError> {
        let key = outbound::resolve(&self.store, &self.settings, target, client_namespace)?;
        let value = outbound::policy(&self.store, &self.settings, &key);
        Ok(self.outbound.watch(key, value))
    }

    /// Returns the numbers of watched inbound and outbound policies.
    pub fn watched(&self) -> (usize, usize) {
        (self.inbound.len(), self.outbound.len())
    }
}

/// Servers, routes and authorizations are in the pod's namespace; authentications may be in any.
fn affects_pod(changes: &ChangeSet, pod: &Name) -> bool {
    changes.shared || changes.pods.contains(pod) || changes.namespaces.contains(&pod.namespace)
}

/// Routes are in the namespace of the Service or of the client; backends may be in any.
fn affects_target(changes: &ChangeSet, key: &OutboundKey) -> bool {
    match key {
        OutboundKey::External(_) => false,
        OutboundKey::Service {
            service,
            client_namespace,
            ..
        } => {
            changes.services
                || changes.namespaces.contains(&service.namespace)
                || changes.namespaces.contains(client_namespace)
        }
    }
}

#[cfg(test)]
mod tests;
