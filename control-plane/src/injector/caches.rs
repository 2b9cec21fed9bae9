//! What the injector looks up while an API server waits: namespaces, and the ReplicaSets and Jobs
//! between pods and their workloads.
//!
//! All of it is metadata, followed by watches. What is not there yet is asked for, with a deadline:
//! a pod may arrive before the watch has told of its ReplicaSet, or even of its namespace.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use kube::{
    Api, Client, Resource,
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher::{Config, Event},
    },
};
use mesh_core::annotation;
use mesh_k8s::kinds::{Job, Namespace, ObjectMeta, ReplicaSet};
use mesh_runtime::{
    admin::{Condition, Readiness},
    task::Supervisor,
};
use serde::de::DeserializeOwned;

use crate::cluster::{Backoff, explain, follow};

pub(crate) struct Caches {
    client: Client,
    namespaces: Store<PartialObjectMeta<Namespace>>,
    replica_sets: Store<PartialObjectMeta<ReplicaSet>>,
    jobs: Store<PartialObjectMeta<Job>>,
}

/// How long an API server may take for one object. The webhook's own deadline is 8 s, and a review
/// looks up two at most.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

impl Caches {
    /// Starts the watches. The process is not ready until each has listed what there is.
    pub(crate) fn follow(client: &Client, supervisor: &Supervisor, readiness: &Readiness) -> Self {
        Self {
            namespaces: cache(
                client,
                supervisor,
                readiness.condition("namespaces to be listed"),
                "namespaces",
            ),
            replica_sets: cache(
                client,
                supervisor,
                readiness.condition("ReplicaSets to be listed"),
                "ReplicaSets",
            ),
            jobs: cache(
                client,
                supervisor,
                readiness.condition("Jobs to be listed"),
                "Jobs",
            ),
            client: client.clone(),
        }
    }

    /// The namespace's metadata; nothing when it does not exist. An error is said in a sentence.
    pub(crate) async fn namespace(&self, name: &str) -> Result<Option<ObjectMeta>, String> {
        if let Some(known) = self.namespaces.get(&ObjectRef::new(name)) {
            return Ok(Some(known.metadata.clone()));
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let asked = live(&api, name).await;
        asked.map_err(|error| format!("cannot look up the namespace {name:?}: {error}"))
    }

    /// The metadata of the ReplicaSet or Job that stands between a pod and its workload. Nothing
    /// for other kinds, and when it cannot be found.
    pub(crate) async fn between(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
    ) -> Option<Arc<ObjectMeta>> {
        match kind {
            "ReplicaSet" => self.owned(&self.replica_sets, namespace, name).await,
            "Job" => self.owned(&self.jobs, namespace, name).await,
            _ => None,
        }
    }

    async fn owned<K>(
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
        match live(&api, name).await {
            Ok(found) => found.map(Arc::new),
            Err(error) => {
                let kind = K::kind(&());
                tracing::warn!(%kind, namespace, name, error, "Cannot look up the owner of a pod");
                None
            }
        }
    }
}

/// Asks the API server itself.
async fn live<K>(api: &Api<K>, name: &str) -> Result<Option<ObjectMeta>, String>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    match tokio::time::timeout(LOOKUP_TIMEOUT, api.get_metadata_opt(name)).await {
        Ok(Ok(found)) => Ok(found.map(|object| object.metadata)),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_elapsed) => Err(format!(
            "the API server did not answer within {} s",
            LOOKUP_TIMEOUT.as_secs()
        )),
    }
}

/// Keeps the metadata of every object of a kind, as much of it as is looked at.
fn cache<K>(
    client: &Client,
    supervisor: &Supervisor,
    listed: Condition,
    what: &'static str,
) -> Store<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, mut writer) = reflector::store();
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    let events = follow(api, Config::default(), what, Backoff::for_api_server());
    supervisor.spawn(what, async move {
        let mut events = std::pin::pin!(events);
        while let Some(mut event) = events.next().await {
            if let Event::Apply(object) | Event::InitApply(object) = &mut event {
                trim(object);
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

/// A cluster may have tens of thousands of ReplicaSets; their managed fields are most of their
/// metadata.
fn trim<K>(object: &mut PartialObjectMeta<K>) {
    let meta = &mut object.metadata;
    meta.managed_fields = None;
    meta.labels = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| is_ours(key));
    }
}

/// All that a namespace's annotations can say to the injector.
fn is_ours(key: &str) -> bool {
    key == annotation::INJECT
        || key.split_once('/').is_some_and(|(prefix, _)| {
            prefix.starts_with("config.") && prefix.ends_with("linkerd.io")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_looked_at_is_kept() {
        let mut object = PartialObjectMeta::<Namespace>::default();
        let keys = [
            "linkerd.io/inject",
            "config.linkerd.io/proxy-log-level",
            "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
            "kubectl.kubernetes.io/last-applied-configuration",
        ];
        let annotations = keys.map(|key| (key.to_owned(), String::new()));
        object.metadata.annotations = Some(annotations.into());
        trim(&mut object);
        let kept: Vec<String> = object
            .metadata
            .annotations
            .unwrap_or_default()
            .into_keys()
            .collect();
        assert_eq!(kept, [keys[2], keys[1], keys[0]]);
    }
}
