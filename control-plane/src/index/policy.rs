//! The index of the policy service.

use std::collections::BTreeSet;
use std::sync::Arc;

use mesh_cluster::source::{Batch, Received};
use mesh_core::policy::inbound::ServerPolicy;
use mesh_core::policy::outbound::{OutboundPolicy, Target};
use mesh_objects::model::{Name, WorkloadRef};
use mesh_objects::policy::inbound::{self, Overlap};
use mesh_objects::policy::outbound::{self, OutboundError, OutboundKey};
use mesh_objects::policy::settings::PolicySettings;
use mesh_objects::store::{ChangeSet, Store};
use tokio::sync::watch;

use super::version::Version;
use super::views::Views;

/// The inbound and outbound policies that proxies watch.
#[derive(Debug)]
pub struct PolicyIndex {
    settings: PolicySettings,
    store: Store,
    /// `None` if the workload has been deleted, which ends the streams.
    inbound: Views<InboundKey, Version<Option<ServerPolicy>>>,
    /// The overlaps of Servers that have been logged, so that each is logged once and not for every
    /// pod.
    overlaps: BTreeSet<Overlap>,
    /// `None` if the destination has no policy any more, which ends the streams.
    outbound: Views<OutboundKey, Version<Option<OutboundPolicy>>>,
}

/// A port of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundKey {
    pub workload: WorkloadRef,
    pub port: u16,
}

impl PolicyIndex {
    pub fn new(settings: PolicySettings) -> Self {
        Self {
            settings,
            store: Store::default(),
            inbound: Views::default(),
            overlaps: BTreeSet::new(),
            outbound: Views::default(),
        }
    }

    pub fn apply(&mut self, batch: Batch) {
        self.apply_received(Received::now(batch));
    }

    pub(crate) fn apply_received(&mut self, received: Received) {
        let at = received.at;
        let changes = self.store.apply(received.batch);
        if changes.is_empty() {
            return;
        }
        let Self {
            settings,
            store,
            inbound,
            overlaps,
            outbound,
        } = self;
        inbound.refresh(
            |key| affects_workload(&changes, &key.workload),
            |key| {
                let policy = inbound::policy(store, settings, &key.workload, key.port);
                Some(Version::changed(policy, at))
            },
        );
        let is_current = |name: &Name| !changes.servers.contains(name);
        overlaps.retain(|it| is_current(&it.server) && is_current(&it.ignored));
        let affected = inbound
            .keys()
            .filter(|key| affects_workload(&changes, &key.workload));
        for key in affected {
            report_overlaps(store, key, overlaps);
        }
        outbound.refresh(
            |key| affects_target(&changes, settings, key),
            |key| Some(Version::changed(outbound::policy(store, settings, key), at)),
        );
    }

    /// Returns the policy of a workload's port; `None` if the workload does not exist.
    pub fn inbound(
        &mut self,
        key: InboundKey,
    ) -> Option<watch::Receiver<Arc<Version<Option<ServerPolicy>>>>> {
        let value = inbound::policy(&self.store, &self.settings, &key.workload, key.port)?;
        report_overlaps(&self.store, &key, &mut self.overlaps);
        let first = |_key: &_| Arc::new(Version::new(Some(value)));
        Some(self.inbound.watch(key, first))
    }

    /// Returns the policy of a destination for clients of a namespace.
    pub fn outbound(
        &mut self,
        target: &Target,
        client_namespace: &Arc<str>,
    ) -> Result<watch::Receiver<Arc<Version<Option<OutboundPolicy>>>>, OutboundError> {
        let key = outbound::resolve(&self.store, &self.settings, target, client_namespace)?;
        let value = outbound::policy(&self.store, &self.settings, &key)
            .ok_or(OutboundError::NoSuchService)?;
        let first = |_key: &_| Arc::new(Version::new(Some(value)));
        Ok(self.outbound.watch(key, first))
    }

    /// Returns the numbers of watched inbound and outbound policies.
    pub fn watched(&self) -> (usize, usize) {
        (self.inbound.len(), self.outbound.len())
    }
}

/// Servers, routes, authorizations and rate limits are in the workload's namespace; authentications
/// may be in any.
fn affects_workload(changes: &ChangeSet, workload: &WorkloadRef) -> bool {
    let name = workload.name();
    changes.shared
        || changes.namespaces.contains(&name.namespace)
        || matches!(workload, WorkloadRef::Pod(pod) if changes.pods.contains(pod))
}

/// Logs the Servers that have no effect on a port that they select, unless they are in `reported`.
fn report_overlaps(store: &Store, key: &InboundKey, reported: &mut BTreeSet<Overlap>) {
    for overlap in inbound::overlaps(store, &key.workload, key.port) {
        if reported.contains(&overlap) {
            continue;
        }
        let Overlap {
            port,
            server,
            ignored,
        } = &overlap;
        tracing::warn!(
            port, %server, %ignored, workload = %key.workload.name(),
            "Several Servers select a port: the oldest applies; change the selector or the port of the other"
        );
        reported.insert(overlap);
    }
}

/// Backends may be in any namespace.
fn affects_target(changes: &ChangeSet, settings: &PolicySettings, key: &OutboundKey) -> bool {
    let namespaces = outbound::namespaces(settings, key);
    changes.services
        || namespaces
            .iter()
            .any(|namespace| changes.namespaces.contains(*namespace))
}

#[cfg(test)]
mod tests;
