//! The objects that decide about mirrors, and the mirrors that should exist. Without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use mesh_k8s::crd::{LinkSpec, LinkStatus};
use mesh_objects::model::Name;
use parking_lot::Mutex;

use super::limits::{MAX_BYTES, MAX_SERVICES, MAX_SLICES};
use super::planned::{Key, Plan};
use super::records::{LocalEndpoints, LocalService, RemoteService, RemoteSlice, Table};
use super::target::Target;

/// The objects of both clusters, and what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Mirrors {
    pub(super) settings: Settings,
    pub(super) services: Listed<Table<LocalService>>,
    pub(super) endpoints: Listed<Table<LocalEndpoints>>,
    pub(super) namespaces: Listed<BTreeSet<Arc<str>>>,
    pub(super) links: Listed<Table<LinkRecord>>,
    /// `None` without a Link.
    pub(super) target: Option<Arc<Target>>,
    /// `None` until they were read.
    pub(super) remote: Option<RemoteObjects>,
    pub(super) gateway: GatewayState,
    refusals: Refusals,
    /// Computed when it is used first after a change that it does not expect.
    pub(super) plan: OnceLock<Arc<Plan>>,
}

/// The settings of the process.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The namespace of Link and Secret.
    pub(crate) namespace: Arc<str>,
    /// `None` for the members of this cluster.
    pub(crate) link: Option<Arc<str>>,
    pub(crate) mirrors_headless: bool,
    pub(crate) creates_namespaces: bool,
    /// The Service that the gateway is probed by.
    pub(crate) probe_service: Option<Arc<str>>,
}

/// Objects that are complete from the first list on.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed<T> {
    pub(super) objects: T,
    pub(super) complete: bool,
}

/// A Link of the namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinkRecord {
    pub(super) version: Arc<str>,
    pub(super) created: Option<Timestamp>,
    pub(super) spec: LinkSpec,
    pub(super) status: LinkStatus,
}

/// The objects of the target cluster, within [limits](super::limits).
#[derive(Clone, Debug, Default)]
pub(super) struct RemoteObjects {
    /// The cluster that they were read from; `None` for this one.
    pub(super) cluster: Option<Arc<str>>,
    pub(super) services: Table<RemoteService>,
    pub(super) slices: Table<RemoteSlice>,
    bytes: usize,
    /// Whether there was no room for an object.
    pub(super) is_full: bool,
}

/// The gateway of the target cluster.
#[derive(Clone, Debug)]
pub(super) struct GatewayState {
    /// Sorted as texts, as in Linkerd. `None` until a name was resolved.
    pub(super) addresses: Option<Arc<[IpAddr]>>,
    /// It counts as alive until probes have failed.
    pub(super) alive: bool,
}

/// Why the API server has refused writes. Clones share it, because a write is answered when other
/// objects have changed.
#[derive(Clone, Debug, Default)]
struct Refusals(Arc<Mutex<BTreeMap<Key, Arc<str>>>>);

/// The bytes of an API server's error that a status repeats.
const MAX_REFUSAL: usize = 512;

impl Mirrors {
    pub(crate) fn new(settings: Settings, target: Option<Target>) -> Self {
        Self {
            settings,
            services: Listed::default(),
            endpoints: Listed::default(),
            namespaces: Listed::default(),
            links: Listed::default(),
            target: target.map(Arc::new),
            remote: None,
            gateway: GatewayState {
                addresses: None,
                alive: true,
            },
            refusals: Refusals::default(),
            plan: OnceLock::new(),
        }
    }

    /// Forgets what should exist. Called after each change that the plan does not expect.
    pub(super) fn forget_plan(&mut self) {
        self.plan = OnceLock::new();
    }

    /// Returns whether a change follows from what should exist, so that it changes nothing else:
    /// mostly it is the effect of a write of this process.
    pub(super) fn expects(&self, is_expected: impl FnOnce(&Plan, Option<&str>) -> bool) -> bool {
        let target = self.target.as_ref();
        let cluster = target.and_then(|target| target.cluster.as_deref());
        match self.plan.get() {
            Some(plan) => is_expected(plan, cluster),
            None => false,
        }
    }

    /// Returns the Link of this process.
    pub(super) fn own_link(&self) -> Option<(&Name, &LinkRecord)> {
        let link = self.settings.link.as_ref()?;
        let mut links = self.links.objects.iter();
        let (name, record) = links.find(|(name, _)| name.name == *link)?;
        Some((name, record))
    }

    /// Returns the oldest Link of the cluster, which is the one in effect.
    pub(super) fn link_of(&self, cluster: &str) -> Option<&Name> {
        let links = self.links.objects.iter();
        let links = links.filter(|(_, link)| link.spec.target_cluster_name == cluster);
        let oldest = links.min_by_key(|(name, link)| (link.created, *name));
        oldest.map(|(name, _)| name)
    }

    /// Returns whether this process may write.
    pub(super) fn is_complete(&self) -> bool {
        let listed = self.services.complete && self.namespaces.complete;
        if self.settings.link.is_none() {
            return listed;
        }
        listed && self.endpoints.complete && self.links.complete
    }

    pub(super) fn refuse(&self, key: &Key, why: Option<&str>) {
        let mut refusals = self.refusals.0.lock();
        match why {
            Some(why) => {
                let why = &why[..why.floor_char_boundary(MAX_REFUSAL)];
                refusals.insert(key.clone(), why.into())
            }
            None => refusals.remove(key),
        };
        // Keys of objects that are no longer wanted have no meaning.
        let plan = self.plan();
        refusals.retain(|key, _| plan.entries.contains_key(key));
    }

    /// Returns why the last write of an object was refused.
    pub(super) fn refusal(&self, key: &Key) -> Option<Arc<str>> {
        self.refusals.0.lock().get(key).cloned()
    }
}

impl RemoteObjects {
    pub(super) fn new(cluster: Option<Arc<str>>) -> Self {
        Self {
            cluster,
            ..Self::default()
        }
    }

    /// Sets or removes a Service, and returns whether that has an effect.
    pub(super) fn set_service(&mut self, name: &Name, service: Option<RemoteService>) -> bool {
        let before = self.services.remove(name);
        let before_size = before.as_ref().map(|it| it.size() + name_size(name));
        self.bytes -= before_size.unwrap_or_default();
        let Some(service) = service else {
            return before.is_some();
        };
        let differs = before.as_deref() != Some(&service);
        if self.has_room(self.services.len() < MAX_SERVICES, service.size(), name) {
            self.services.insert(name.clone(), Arc::new(service));
        }
        differs
    }

    /// Sets or removes an EndpointSlice, and returns whether that has an effect.
    pub(super) fn set_slice(&mut self, name: &Name, slice: Option<RemoteSlice>) -> bool {
        let before = self.slices.remove(name);
        let before_size = before.as_ref().map(|it| it.size() + name_size(name));
        self.bytes -= before_size.unwrap_or_default();
        let Some(slice) = slice else {
            return before.is_some();
        };
        let differs = before.as_deref() != Some(&slice);
        if self.has_room(self.slices.len() < MAX_SLICES, slice.size(), name) {
            self.slices.insert(name.clone(), Arc::new(slice));
        }
        differs
    }

    fn has_room(&mut self, is_below: bool, size: usize, name: &Name) -> bool {
        let bytes = self.bytes + size + name_size(name);
        if !is_below || bytes > MAX_BYTES {
            if !std::mem::replace(&mut self.is_full, true) {
                let cluster = self.cluster.as_deref();
                tracing::error!(cluster, %name, "The target cluster has more objects than are mirrored; further ones have no effect. There may be {MAX_SERVICES} Services and {MAX_SLICES} EndpointSlices with {} MiB of texts", MAX_BYTES >> 20);
            }
            return false;
        }
        self.bytes = bytes;
        true
    }
}

fn name_size(name: &Name) -> usize {
    name.namespace.len() + name.name.len()
}
