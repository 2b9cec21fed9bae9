//! The index of the policy service.

use std::sync::Arc;

use mesh_core::policy::{
    inbound::ServerPolicy,
    outbound::{OutboundPolicy, Target},
};
use tokio::sync::watch;

use super::{
    inbound,
    outbound::{self, OutboundError, OutboundKey},
    settings::PolicySettings,
    store::{Store, Touched},
    views::Views,
};
use crate::{model::Name, source::Batch};

#[derive(Debug)]
pub struct PolicyIndex {
    settings: PolicySettings,
    store: Store,
    /// Nothing where the pod is gone: its streams end.
    inbound: Views<InboundKey, Option<ServerPolicy>>,
    outbound: Views<OutboundKey, OutboundPolicy>,
}

/// One port of a pod.
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
        let touched = self.store.apply(batch);
        if touched.is_empty() {
            return;
        }
        let Self {
            settings,
            store,
            inbound,
            outbound,
        } = self;
        inbound.refresh(
            |key| affects_pod(&touched, &key.pod),
            |key| Some(inbound::policy(store, settings, &key.pod, key.port)),
        );
        outbound.refresh(
            |key| affects_target(&touched, key),
            |key| Some(outbound::policy(store, settings, key)),
        );
    }

    /// The policy of a pod's port; nothing when there is no such pod.
    pub fn inbound(
        &mut self,
        key: InboundKey,
    ) -> Option<watch::Receiver<Arc<Option<ServerPolicy>>>> {
        let value = inbound::policy(&self.store, &self.settings, &key.pod, key.port)?;
        Some(self.inbound.watch(key, Some(value)))
    }

    /// The policy of a destination for clients of a namespace.
    pub fn outbound(
        &mut self,
        target: &Target,
        client_namespace: &Arc<str>,
    ) -> Result<watch::Receiver<Arc<OutboundPolicy>>, OutboundError> {
        let key = outbound::resolve(&self.store, &self.settings, target, client_namespace)?;
        let value = outbound::policy(&self.store, &self.settings, &key);
        Ok(self.outbound.watch(key, value))
    }

    /// How many different values are watched: inbound and outbound.
    pub fn watched(&self) -> (usize, usize) {
        (self.inbound.len(), self.outbound.len())
    }
}

/// Servers, routes and authorizations stand in the pod's namespace; authentications may be
/// anywhere.
fn affects_pod(touched: &Touched, pod: &Name) -> bool {
    touched.shared || touched.pods.contains(pod) || touched.namespaces.contains(&pod.namespace)
}

/// Routes stand in the namespace of the Service or of the client; backends may be anywhere.
fn affects_target(touched: &Touched, key: &OutboundKey) -> bool {
    match key {
        OutboundKey::External(_) => false,
        OutboundKey::Service {
            service,
            client_namespace,
            ..
        } => {
            touched.services
                || touched.namespaces.contains(&service.namespace)
                || touched.namespaces.contains(client_namespace)
        }
    }
}

#[cfg(test)]
mod tests;
