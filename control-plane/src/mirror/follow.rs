//! Follows the objects of this cluster.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use jiff::Timestamp;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, Resource};
use mesh_cluster::api_server::{Backoff, WATCH_SECONDS, watch_objects};
use mesh_cluster::daemon::Daemon;
use mesh_core::annotation::MIRRORED_CLUSTER;
use mesh_k8s::kinds::core::{Endpoints, Namespace, Service};
use mesh_objects::model::Name;
use serde::de::DeserializeOwned;

use super::objects::{Listed, Mirrors};
use super::planned::{Entry, Key};
use super::publisher::Publisher;
use super::records::{LocalEndpoints, LocalService, Table};
use crate::writer::Written as _;

/// A change that a watch reports.
pub(super) enum Step<K> {
    Set(Name, K),
    Delete(Name),
    /// All objects have been reported: these exist.
    Listed(BTreeSet<Name>),
}

/// Objects of a list are parsed by this number, so that a long list takes little memory.
const PAGE: u32 = 100;

/// Starts to follow Services and namespaces, and Endpoints if mirrors have some. The process is not
/// ready until each was listed.
pub(crate) fn follow_local(
    daemon: &Daemon,
    client: &Client,
    publisher: &Publisher,
    has_endpoints: bool,
) {
    let listed = daemon.readiness.condition("Services to be listed");
    let to = publisher.clone();
    let services = steps(Api::<Service>::all(client.clone()), config(), "Services");
    daemon.supervisor.spawn("Services", async move {
        let mut services = std::pin::pin!(services);
        while let Some(step) = services.next().await {
            listed.set(true);
            to.change(|mirrors| set_service(mirrors, step));
        }
    });

    let listed = daemon.readiness.condition("namespaces to be listed");
    let to = publisher.clone();
    let api = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
    let namespaces = steps(api, config(), "namespaces");
    daemon.supervisor.spawn("namespaces", async move {
        let mut namespaces = std::pin::pin!(namespaces);
        while let Some(step) = namespaces.next().await {
            listed.set(true);
            to.change(|mirrors| set_namespace(mirrors, step));
        }
    });

    if !has_endpoints {
        return;
    }
    let listed = daemon.readiness.condition("Endpoints to be listed");
    let to = publisher.clone();
    let config = config().labels(MIRRORED_CLUSTER);
    let endpoints = steps(Api::<Endpoints>::all(client.clone()), config, "Endpoints");
    daemon.supervisor.spawn("Endpoints", async move {
        let mut endpoints = std::pin::pin!(endpoints);
        while let Some(step) = endpoints.next().await {
            listed.set(true);
            to.change(|mirrors| set_endpoints(mirrors, step));
        }
    });
}

pub(super) fn config() -> Config {
    Config::default().timeout(WATCH_SECONDS).page_size(PAGE)
}

/// Returns the changes of a kind. `what` describes the objects in the log.
pub(super) fn steps<K>(
    api: Api<K>,
    config: Config,
    what: &'static str,
) -> impl Stream<Item = Step<K>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watch_objects(api, config, what, Backoff::for_api_server());
    let mut listed = BTreeSet::new();
    events.filter_map(move |event| {
        let step = match event {
            Event::Init => {
                listed.clear();
                None
            }
            Event::InitApply(object) => {
                let name = name(&object);
                listed.insert(name.clone());
                Some(Step::Set(name, object))
            }
            Event::Apply(object) => Some(Step::Set(name(&object), object)),
            Event::Delete(object) => Some(Step::Delete(name(&object))),
            Event::InitDone => Some(Step::Listed(std::mem::take(&mut listed))),
        };
        std::future::ready(step)
    })
}

fn name<K: Resource>(object: &K) -> Name {
    let meta = object.meta();
    Name::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

impl<K> Step<K> {
    pub(super) fn map<R>(self, map: impl FnOnce(K) -> R) -> Step<R> {
        match self {
            Self::Set(name, object) => Step::Set(name, map(object)),
            Self::Delete(name) => Step::Delete(name),
            Self::Listed(listed) => Step::Listed(listed),
        }
    }
}

impl<R> Step<R> {
    fn key(&self, key: impl FnOnce(Name) -> Key) -> Option<Key> {
        match self {
            Self::Set(name, _) | Self::Delete(name) => Some(key(name.clone())),
            Self::Listed(_) => None,
        }
    }
}

impl Mirrors {
    /// Forgets what should exist after a change that was not expected. Returns whether anything is
    /// to be done about a change: nothing is about the effect of an own write, of which there are
    /// thousands when a cluster is linked. The status follows when all objects are compared.
    fn takes_note(&mut self, key: Option<Key>, is_expected: bool) -> bool {
        if !is_expected {
            self.forget_plan();
            return true;
        }
        key.is_none_or(|key| {
            let is_host = matches!(self.plan().entries.get(&key), Some(Entry::Host(..)));
            // Its address is an endpoint of the headless mirror.
            is_host || self.write(&key, Timestamp::UNIX_EPOCH).is_some()
        })
    }
}

impl<R> Step<Option<R>> {
    /// Returns the record of one object; `None` for a list.
    fn record(&self) -> Option<(&Name, Option<&R>)> {
        match self {
            Self::Set(name, record) => Some((name, record.as_ref())),
            Self::Delete(name) => Some((name, None)),
            Self::Listed(_) => None,
        }
    }
}

/// Applies a change of a Service of this cluster, and returns whether there is anything to do.
pub(super) fn set_service(mirrors: &mut Mirrors, step: Step<Service>) -> bool {
    let step = step.map(|service| Some(LocalService::new(&service)));
    let is_expected = mirrors.expects(|plan, cluster| {
        let one = step.record();
        one.is_some_and(|(name, service)| plan.expects_service(name, service, cluster))
    });
    let key = step.key(Key::Service);
    let changed = apply(&mut mirrors.services, step);
    changed && mirrors.takes_note(key, is_expected)
}

/// The same for Endpoints.
pub(super) fn set_endpoints(mirrors: &mut Mirrors, step: Step<Endpoints>) -> bool {
    let step = step.map(|endpoints| LocalEndpoints::new(&endpoints));
    let is_expected = mirrors.expects(|plan, cluster| {
        let one = step.record();
        one.is_some_and(|(name, endpoints)| plan.expects_endpoints(name, endpoints, cluster))
    });
    let key = step.key(Key::Endpoints);
    let changed = apply(&mut mirrors.endpoints, step);
    changed && mirrors.takes_note(key, is_expected)
}

/// A namespace that is being deleted counts as missing: nothing can be created there.
pub(super) fn set_namespace(
    mirrors: &mut Mirrors,
    step: Step<PartialObjectMeta<Namespace>>,
) -> bool {
    let Listed { objects, complete } = &mut mirrors.namespaces;
    let changed = match step {
        Step::Set(name, namespace) if namespace.metadata.deletion_timestamp.is_none() => {
            objects.insert(name.name)
        }
        Step::Set(name, _) | Step::Delete(name) => objects.remove(&name.name),
        Step::Listed(listed) => {
            let listed: BTreeSet<Arc<str>> = listed.into_iter().map(|name| name.name).collect();
            let changed = !std::mem::replace(complete, true) || *objects != listed;
            objects.retain(|name| listed.contains(name));
            changed
        }
    };
    if changed {
        mirrors.forget_plan();
    }
    changed
}

/// Applies a change to a table, and returns whether it has changed the table.
pub(super) fn apply<R: PartialEq>(table: &mut Listed<Table<R>>, step: Step<Option<R>>) -> bool {
    let Listed { objects, complete } = table;
    match step {
        Step::Set(name, Some(record)) => {
            let record = Arc::new(record);
            let before = objects.insert(name, record.clone());
            before.as_ref() != Some(&record)
        }
        Step::Set(name, None) | Step::Delete(name) => objects.remove(&name).is_some(),
        Step::Listed(listed) => {
            let before = objects.len();
            objects.retain(|name, _| listed.contains(name));
            !std::mem::replace(complete, true) || before != objects.len()
        }
    }
}
