//! Lookups during reviews: namespaces, and the ReplicaSets and Jobs between pods and their
//! workloads.
//!
//! Watches cache their metadata. Missing objects are requested with a deadline, because a pod may
//! be reviewed before the watch reports its ReplicaSet or namespace.

use std::fmt::Debug;
use std::sync::Arc;

use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource};
use mesh_cluster::metadata::{NamespaceCache, get_metadata, namespace_rights, start_cache};
use mesh_core::annotation;
use mesh_core::rights::{self, Right};
use mesh_k8s::kinds::{Job, ObjectMeta, ReplicaSet};
use mesh_runtime::admin::Readiness;
use mesh_runtime::task::Supervisor;
use serde::de::DeserializeOwned;

pub(crate) struct Caches {
    client: Client,
    namespaces: NamespaceCache,
    replica_sets: Store<PartialObjectMeta<ReplicaSet>>,
    jobs: Store<PartialObjectMeta<Job>>,
}

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

/// Returns the rights of all caches.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    let read = &["get", "list", "watch"];
    namespace_rights()
        .chain(rights::all("apps", "replicasets", read))
        .chain(rights::all("batch", "jobs", read))
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
    use mesh_cluster::metadata::remove_unused;
    use mesh_k8s::kinds::Namespace;

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
