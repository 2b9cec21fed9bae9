//! The endpoints of a Service whose members are elsewhere: the union of the members' endpoints.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select_all};
use mesh_objects::model::{Members, Name};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Clusters;
use crate::index::{DestinationIndex, EndpointSet, EndpointsKey, Subscription, Version};

/// Finds endpoints in linked clusters. Clients with the same key share them.
#[derive(Debug)]
pub(crate) struct RemoteDiscovery {
    index: Arc<Mutex<DestinationIndex>>,
    clusters: Clusters,
    /// The endpoints that clients watch.
    published: Mutex<HashMap<EndpointsKey, watch::Sender<Arc<Version<EndpointSet>>>>>,
}

type Endpoints = watch::Receiver<Arc<Version<EndpointSet>>>;

/// The members of a Service, and what may change its endpoints.
struct Sources {
    members: Arc<Members>,
    sets: Vec<Arc<Version<EndpointSet>>>,
    /// Each is notified of a change.
    watched: Vec<Watched>,
    /// Tells of changes of this cluster, which may be changes of the members.
    generation: watch::Receiver<Arc<u64>>,
    clusters: watch::Receiver<()>,
}

enum Watched {
    Endpoints(Endpoints),
    /// The Service does not exist, and may with the next change.
    Missing(watch::Receiver<Arc<u64>>),
}

/// What has changed.
enum Changed {
    /// Members or their endpoints may have.
    Sources,
    /// An object of this cluster, perhaps the Service.
    Objects,
}

impl RemoteDiscovery {
    pub(crate) fn new(index: Arc<Mutex<DestinationIndex>>, clusters: Clusters) -> Arc<Self> {
        Arc::new(Self {
            index,
            clusters,
            published: Mutex::default(),
        })
    }

    /// Returns the endpoints of a Service; `None` if it has no members. They end with the Service.
    pub(crate) fn endpoints(self: &Arc<Self>, key: &EndpointsKey) -> Option<Endpoints> {
        let mut published = self.published.lock();
        if let Some(sender) = published.get(key) {
            return Some(sender.subscribe());
        }
        let sources = self.sources(key)?;
        let first = Version::new(union(key, &sources));
        let (sender, endpoints) = watch::channel(Arc::new(first));
        published.insert(key.clone(), sender.clone());
        tokio::spawn(self.clone().publish(key.clone(), sender, sources));
        Some(endpoints)
    }

    /// Returns the number of watched sets of endpoints.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.published.lock().len()
    }

    /// Publishes the endpoints until the Service is gone or no client watches them.
    async fn publish(
        self: Arc<Self>,
        key: EndpointsKey,
        sender: watch::Sender<Arc<Version<EndpointSet>>>,
        mut sources: Sources,
    ) {
        loop {
            let changed = tokio::select! {
                biased;
                () = sender.closed() => None,
                changed = sources.changed() => Some(changed),
            };
            match changed {
                None => {
                    let mut published = self.published.lock();
                    // A client may have come.
                    if sender.receiver_count() == 0 {
                        published.remove(&key);
                        return;
                    }
                    continue;
                }
                Some(Changed::Sources) => {}
                Some(Changed::Objects) => {
                    let members = self.index.lock().members(&key.service);
                    if members.as_ref() == Some(&sources.members) {
                        continue;
                    }
                }
            }
            let Some(next) = self.sources(&key) else {
                self.published.lock().remove(&key);
                return;
            };
            sources = next;
            let set = union(&key, &sources);
            let at = sources.sets.iter().filter_map(|set| set.changed_at()).max();
            sender.send_if_modified(|current| {
                if **current.value() == set {
                    return false;
                }
                *current = Arc::new(Version::changed(set, at.unwrap_or_else(Instant::now)));
                true
            });
        }
    }

    /// Looks the members up.
    fn sources(&self, key: &EndpointsKey) -> Option<Sources> {
        let clusters = self.clusters.subscribe();
        let (members, generation) = {
            let index = self.index.lock();
            (index.members(&key.service)?, index.generation())
        };
        let mut sources = Sources {
            sets: Vec::new(),
            watched: Vec::new(),
            generation,
            clusters,
            members: members.clone(),
        };
        let named = |name: &Arc<str>, unfiltered| EndpointsKey {
            service: Name {
                namespace: key.service.namespace.clone(),
                name: name.clone(),
            },
            unfiltered,
            ..key.clone()
        };
        if let Some(local) = &members.local {
            sources.add(&self.index, named(local, false));
        }
        for member in &members.remote {
            match self.clusters.get(&member.cluster) {
                Some(index) => sources.add(&index, named(&member.service, true)),
                None => {
                    let (service, cluster) = (&key.service, &member.cluster);
                    tracing::debug!(%service, %cluster, "A Service has a member in a cluster without a link");
                }
            }
        }
        Some(sources)
    }
}

impl Sources {
    fn add(&mut self, index: &Mutex<DestinationIndex>, key: EndpointsKey) {
        let mut index = index.lock();
        match index.endpoints(key) {
            Ok(Subscription::Cached(mut endpoints)) => {
                self.sets.push(endpoints.borrow_and_update().clone());
                self.watched.push(Watched::Endpoints(endpoints));
            }
            Ok(Subscription::Uncached { value, generation }) => {
                self.sets.push(Arc::new(value));
                self.watched.push(Watched::Missing(generation));
            }
            Err(_missing) => self.watched.push(Watched::Missing(index.generation())),
        }
    }

    /// Waits for a change.
    async fn changed(&mut self) -> Changed {
        let mut waiting: Vec<BoxFuture<'_, Changed>> = Vec::new();
        let Self {
            watched,
            generation,
            clusters,
            ..
        } = self;
        waiting.push(
            async {
                let _ended = clusters.changed().await;
                Changed::Sources
            }
            .boxed(),
        );
        for source in watched {
            waiting.push(
                async move {
                    // An index that ends is replaced, which `clusters` tells.
                    let ended = match source {
                        Watched::Endpoints(endpoints) => endpoints.changed().await,
                        Watched::Missing(generation) => generation.changed().await,
                    };
                    if ended.is_err() {
                        std::future::pending::<()>().await;
                    }
                    Changed::Sources
                }
                .boxed(),
            );
        }
        waiting.push(
            async {
                if generation.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                Changed::Objects
            }
            .boxed(),
        );
        select_all(waiting).await.0
    }
}

/// Returns the endpoints of all members. Of an address in two clusters the first one counts.
fn union(key: &EndpointsKey, sources: &Sources) -> EndpointSet {
    let Name { namespace, name } = &key.service;
    let mut endpoints = BTreeMap::new();
    for set in &sources.sets {
        for (addr, endpoint) in &set.endpoints {
            endpoints.entry(*addr).or_insert_with(|| endpoint.clone());
        }
    }
    let labels = [("namespace", namespace), ("service", name)];
    EndpointSet {
        endpoints,
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_string()))
            .into(),
    }
}
