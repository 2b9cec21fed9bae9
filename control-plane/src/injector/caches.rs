//! Lookups during reviews: namespaces, and the ReplicaSets and Jobs between pods and their
//! workloads.
//!
//! Watches cache their metadata. Missing objects are requested with a deadline, because a pod may
//! be reviewed before the watch reports its ReplicaSet or namespace.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, Resource};
use mesh_core::annotation;
use mesh_core::rights::{self, Right};
use mesh_k8s::kinds::{Job, Namespace, ObjectMeta, ReplicaSet};
use mesh_runtime::admin::{Condition, Readiness};
use mesh_runtime::task::Supervisor;
use serde::de::DeserializeOwned;

use crate::cluster::{Backoff, explain, watch_objects};

pub(crate) struct Caches {
    client: Client,
    namespaces: NamespaceCache,
    replica_sets: Store<PartialObjectMeta<ReplicaSet>>,
    jobs: Store<PartialObjectMeta<Job>>,
}

/// The metadata of all namespaces.
pub(crate) struct NamespaceCache {
    client: Client,
    store: Store<PartialObjectMeta<Namespace>>,
}

/// Returns whether an annotation is cached.
type IsUsed = fn(&str) -> bool;

/// Timeout of requesting an object. The deadline of a review is 8 s, and it requests two objects at
/// most.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

impl Caches {
    /// Starts the watches. The process is not ready until each has listed its objects.
    pub(crate) fn start(client: &Client, supervisor: &Supervisor, readiness: &Readiness) -> Self {
        macro_rules! cache {
            ($what:literal) => {{
                let listed = readiness.condition(concat!($what, " to be listed"));
                start_cache(client, supervisor, listed, $what, is_injector_annotation)
            }};
        }
        Self {
            namespaces: NamespaceCache::start(
                client,
                supervisor,
                readiness,
                is_injector_annotation,
            ),
            replica_sets: cache!("ReplicaSets"),
            jobs: cache!("Jobs"),
            client: client.clone(),
        }
    }

    /// Returns the namespace's metadata; `None` if it does not exist.
    pub(crate) async fn namespace(&self, name: &str) -> Result<Option<ObjectMeta>, String> {
        self.namespaces.get(name).await
    }

    /// Returns the metadata of the ReplicaSet or Job that owns a pod; `None` for other kinds and if
    /// it cannot be found.
    pub(crate) async fn intermediate_owner(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
    ) -> Option<Arc<ObjectMeta>> {
        match kind {
            "ReplicaSet" => {
                self.get_or_look_up(&self.replica_sets, namespace, name)
                    .await
            }
            "Job" => self.get_or_look_up(&self.jobs, namespace, name).await,
            _ => None,
        }
    }

    async fn get_or_look_up<K>(
        &self,
        store: &Store<PartialObjectMeta<K>>,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<ObjectMeta>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + 'static,
    {
        if let Some(known) = store.get(&ObjectRef::new(name).within(namespace)) {
            return Some(Arc::new(known.metadata.clone()));
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match get_metadata(&api, name).await {
            Ok(found) => found.map(Arc::new),
            Err(error) => {
                let kind = K::kind(&());
                tracing::warn!(%kind, namespace, name, error, "Cannot look up owner of pod");
                None
            }
        }
    }
}

impl NamespaceCache {
    /// Starts the watch. The process is not ready until it has listed the namespaces. Annotations
    /// that are not used are not cached.
    pub(crate) fn start(
        client: &Client,
        supervisor: &Supervisor,
        readiness: &Readiness,
        is_used: IsUsed,
    ) -> Self {
        let listed = readiness.condition("namespaces to be listed");
        Self {
            store: start_cache(client, supervisor, listed, "namespaces", is_used),
            client: client.clone(),
        }
    }

    /// Returns a namespace's metadata; `None` if it does not exist.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<ObjectMeta>, String> {
        if let Some(known) = self.store.get(&ObjectRef::new(name)) {
            return Ok(Some(known.metadata.clone()));
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = get_metadata(&api, name).await;
        found.map_err(|error| format!("cannot look up the namespace {name:?}: {error}"))
    }
}

/// Returns the rights of the caches of namespaces' metadata.
pub(crate) fn namespace_rights() -> impl Iterator<Item = Right> {
    rights::all("", "namespaces", &["get", "list", "watch"])
}

/// Returns the rights of all caches.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    let read = &["get", "list", "watch"];
    namespace_rights()
        .chain(rights::all("apps", "replicasets", read))
        .chain(rights::all("batch", "jobs", read))
}

/// Requests the metadata of an object from the API server.
async fn get_metadata<K>(api: &Api<K>, name: &str) -> Result<Option<ObjectMeta>, String>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    match tokio::time::timeout(LOOKUP_TIMEOUT, api.get_metadata_opt(name)).await {
        Ok(Ok(found)) => Ok(found.map(|object| object.metadata)),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_elapsed) => Err(format!(
            "no response from the API server within {} s",
            LOOKUP_TIMEOUT.as_secs()
        )),
    }
}

/// Caches the used metadata of all objects of a kind.
fn start_cache<K>(
    client: &Client,
    supervisor: &Supervisor,
    listed: Condition,
    what: &'static str,
    is_used: IsUsed,
) -> Store<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, mut writer) = reflector::store();
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let events = watch_objects(api, Config::default(), what, Backoff::for_api_server());
    supervisor.spawn(what, async move {
        let mut events = std::pin::pin!(events);
        while let Some(mut event) = events.next().await {
            if let Event::Apply(object) | Event::InitApply(object) = &mut event {
                remove_unused(object, is_used);
            }
            let complete = matches!(event, Event::InitDone);
            writer.apply_watcher_event(&event);
            if complete {
                listed.set(true);
            }
        }
    });
    store
}

/// Removes unused metadata. A cluster may have tens of thousands of ReplicaSets, whose metadata
/// mostly consists of managed fields.
fn remove_unused<K>(object: &mut PartialObjectMeta<K>, is_used: IsUsed) {
    let meta = &mut object.metadata;
    meta.managed_fields = None;
    meta.labels = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| is_used(key));
    }
}

/// Returns whether the injector reads this annotation of namespaces.
fn is_injector_annotation(key: &str) -> bool {
    key == annotation::INJECT
        || key.split_once('/').is_some_and(|(prefix, _)| {
            prefix.starts_with("config.") && prefix.ends_with("linkerd.io")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_annotations_of_injector_are_cached() {
        let mut object = PartialObjectMeta::<Namespace>::default();
        let keys = [
            "linkerd.io/inject",
            "config.linkerd.io/proxy-log-level",
            "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
            "kubectl.kubernetes.io/last-applied-configuration",
        ];
        let annotations = keys.map(|key| (key.to_owned(), String::new()));
        object.metadata.annotations = Some(annotations.into());
        remove_unused(&mut object, is_injector_annotation);
        let kept: Vec<String> = object
            .metadata
            .annotations
            .unwrap_or_default()
            .into_keys()
            .collect();
        assert_eq!(kept, [keys[2], keys[1], keys[0]]);
    }
}
