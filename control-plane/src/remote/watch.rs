//! Follows the Secrets of linked clusters, and the objects of each cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use mesh_cluster::api_server::{Backoff, watch_objects};
use mesh_cluster::source::kube::{KubeSource, kinds};
use mesh_cluster::source::{self, Received};
use mesh_core::annotation::CLUSTER_NAME;
use mesh_core::rights::{self, Right};
use mesh_k8s::crd::link::CREDENTIALS_TYPE;
use mesh_k8s::kinds::{ResourceExt as _, Secret};
use mesh_runtime::metrics::Registry;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::Clusters;
use super::link::Link;
use crate::index::{DestinationIndex, DestinationSettings};

/// Adds and removes clusters as their Secrets say.
pub(crate) struct ClusterWatch {
    client: Client,
    namespace: String,
    /// The settings of this cluster.
    settings: DestinationSettings,
    clusters: Clusters,
    /// The followed clusters, by the name of their Secret.
    followed: BTreeMap<String, Followed>,
}

struct Followed {
    link: Link,
    /// Reads the cluster's objects.
    task: AbortOnDropHandle<()>,
}

/// Returns the rights to find links.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::all("", "secrets", &["list", "watch"])
}

impl ClusterWatch {
    pub(crate) fn new(
        client: Client,
        namespace: String,
        settings: DestinationSettings,
        clusters: Clusters,
    ) -> Self {
        Self {
            client,
            namespace,
            settings,
            clusters,
            followed: BTreeMap::new(),
        }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = Config::default()
            .labels(CLUSTER_NAME)
            .fields(&format!("type={CREDENTIALS_TYPE}"));
        let what = "Secrets of linked clusters";
        let backoff = Backoff::for_api_server();
        let mut events = Box::pin(watch_objects(secrets, config, what, backoff));
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Event::Init => listed.clear(),
                Event::InitApply(secret) => {
                    listed.insert(secret.name_any());
                    self.apply(&secret);
                }
                Event::Apply(secret) => self.apply(&secret),
                Event::Delete(secret) => self.remove(&secret.name_any()),
                Event::InitDone => {
                    let gone: Vec<String> = self.followed.keys().cloned().collect();
                    for secret in gone.iter().filter(|it| !listed.contains(*it)) {
                        self.remove(secret);
                    }
                }
            }
        }
    }

    /// Follows a cluster, also with new credentials. An invalid Secret changes nothing.
    fn apply(&mut self, secret: &Secret) {
        let name = secret.name_any();
        let link = match Link::read(secret) {
            Ok(link) => link,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    secret = name,
                    error,
                    "Ignored the Secret of a linked cluster"
                );
                return;
            }
        };
        if self.followed.get(&name).is_some_and(|it| it.link == link) {
            return;
        }
        let mut others = self.followed.iter().filter(|(other, _)| **other != name);
        if let Some((other, _)) = others.find(|(_, it)| it.link.cluster == link.cluster) {
            let cluster = &link.cluster;
            tracing::warn!(secret = name, other, %cluster, "Ignored the Secret of a cluster that another Secret links");
            return;
        }
        let settings = DestinationSettings {
            cluster_domain: link.cluster_domain.clone(),
            trust_domain: Some(link.trust_domain.clone()),
            cluster: Some(link.cluster.clone()),
            ..self.settings.clone()
        };
        let before = self.followed.remove(&name);
        let renamed = before.as_ref().filter(|it| it.link.cluster != link.cluster);
        if let Some(renamed) = renamed {
            self.clusters.remove(&renamed.link.cluster);
        }
        // The objects that were read with the old credentials stay until all have been read again.
        let old = before.map(|it| it.task);
        let follow = follow(link.clone(), settings, self.clusters.clone(), old);
        let task = AbortOnDropHandle::new(tokio::spawn(follow));
        self.followed.insert(name, Followed { link, task });
    }

    fn remove(&mut self, secret: &str) {
        if let Some(Followed { link, task }) = self.followed.remove(secret) {
            drop(task);
            self.clusters.remove(&link.cluster);
            tracing::info!(cluster = %link.cluster, "The link of a cluster was removed");
        }
    }
}

/// Reads the objects of a cluster. `old` does so with other credentials, until this task has read
/// all of them.
async fn follow(
    link: Link,
    settings: DestinationSettings,
    clusters: Clusters,
    mut old: Option<AbortOnDropHandle<()>>,
) {
    let cluster = link.cluster;
    let mut backoff = Backoff::for_api_server();
    loop {
        let rights = kinds::remote_rights();
        let connected = link
            .kubeconfig
            .connect("mesh-controller destination", rights);
        match connected.await {
            Ok(client) => {
                let index = Arc::new(Mutex::new(DestinationIndex::new(settings.clone())));
                let (batches, received) = source::channel();
                // The metrics of this process are of its own cluster.
                let source = KubeSource::new(client, kinds::REMOTE, &Registry::new());
                let source = source.without_definitions();
                let apply = apply_batches(received, &index, &clusters, &cluster, &mut old);
                tokio::select! {
                    biased;
                    () = source.run(batches) => {}
                    () = apply => {}
                }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%cluster, error, "Cannot use the credentials of a linked cluster; retrying");
            }
        }
        backoff.wait().await;
    }
}

async fn apply_batches(
    mut received: mpsc::Receiver<Received>,
    index: &Arc<Mutex<DestinationIndex>>,
    clusters: &Clusters,
    cluster: &Arc<str>,
    old: &mut Option<AbortOnDropHandle<()>>,
) {
    let mut is_first = true;
    while let Some(batch) = received.recv().await {
        index.lock().apply_received(batch);
        if std::mem::take(&mut is_first) {
            clusters.insert(cluster.clone(), index.clone());
            tracing::info!(%cluster, "Read the objects of a linked cluster");
            old.take();
        }
    }
}
