//! The metadata of objects, for decisions that need nothing else of them: watches cache the
//! annotations that are used. An object that a watch has not reported yet is requested.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, Resource};
use mesh_core::rights::{self, Right};
use mesh_k8s::kinds::{Namespace, ObjectMeta};
use mesh_runtime::admin::{Condition, Readiness};
use mesh_runtime::task::Supervisor;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::api_server::{Backoff, WATCH_SECONDS, explain, is_transient, watch_objects};

/// The metadata of all namespaces.
pub struct NamespaceCache {
    client: Client,
    store: Store<PartialObjectMeta<Namespace>>,
}

/// Returns whether an annotation is cached.
pub type IsUsed = fn(&str) -> bool;

/// Timeout of requesting an object. The deadline of a review is 8 s, and it requests two objects at
/// most.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

impl NamespaceCache {
    /// Starts the watch. The process is not ready until it has listed the namespaces. Annotations
    /// that are not used are not cached.
    pub fn start(
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
    pub async fn get(&self, name: &str) -> Result<Option<ObjectMeta>, String> {
        if let Some(known) = self.store.get(&ObjectRef::new(name)) {
            return Ok(Some(known.metadata.clone()));
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = get_metadata(&api, name).await;
        found.map_err(|error| format!("cannot look up the namespace {name:?}: {error}"))
    }
}

/// Returns the rights of the caches of namespaces' metadata.
pub fn namespace_rights() -> impl Iterator<Item = Right> {
    rights::all("", "namespaces", &["get", "list", "watch"])
}

/// Requests the metadata of an object from the API server, again if that is overloaded or
/// unreachable.
pub async fn get_metadata<K>(api: &Api<K>, name: &str) -> Result<Option<ObjectMeta>, String>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let end = Instant::now() + LOOKUP_TIMEOUT;
    let found = async {
        let mut backoff = Backoff::for_api_server();
        loop {
            match api.get_metadata_opt(name).await {
                Err(error) if is_transient(&error) => {
                    // The error is the result if there is no time for another attempt.
                    let next = Instant::now() + backoff.delay();
                    if next >= end {
                        return Err(error);
                    }
                    sleep_until(next).await;
                }
                found => return found,
            }
        }
    };
    match timeout_at(end, found).await {
        Ok(Ok(found)) => Ok(found.map(|object| object.metadata)),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_elapsed) => Err(format!(
            "no response from the API server within {} s",
            LOOKUP_TIMEOUT.as_secs()
        )),
    }
}

/// Caches the used metadata of all objects of a kind.
pub fn start_cache<K>(
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
    let events = watch_objects(
        api,
        Config::default().timeout(WATCH_SECONDS),
        what,
        Backoff::for_api_server(),
    );
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
pub fn remove_unused<K>(object: &mut PartialObjectMeta<K>, is_used: IsUsed) {
    let meta = &mut object.metadata;
    meta.managed_fields = None;
    meta.labels = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| is_used(key));
    }
}
