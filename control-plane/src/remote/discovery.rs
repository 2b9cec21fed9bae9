//! The endpoints of a Service whose members are elsewhere: the union of the members' endpoints.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, select_all};
use mesh_objects::model::Name;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Clusters;
use super::union::{Unions, shared_preference, union};
use crate::index::{
    DestinationIndex, EndpointSet, EndpointsKey, Membership, Subscription, Version,
};

/// Finds endpoints in linked clusters. Clients with the same key share them, and clients with other
/// keys the versions that follow from the same endpoints.
#[derive(Debug)]
pub(crate) struct RemoteDiscovery {
    index: Arc<Mutex<DestinationIndex>>,
    clusters: Clusters,
    /// The endpoints that clients watch.
    published: Mutex<HashMap<EndpointsKey, watch::Sender<Arc<Version<EndpointSet>>>>>,
    unions: Mutex<Unions>,
}

type Endpoints = watch::Receiver<Arc<Version<EndpointSet>>>;

/// The members of a Service, and what may change its endpoints.
struct Sources {
    membership: Membership,
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
            unions: Mutex::default(),
        })
    }

    /// Returns the endpoints of a Service; `None` if it has no members. They end with the Service.
    pub(crate) fn endpoints(self: &Arc<Self>, key: &EndpointsKey) -> Option<Endpoints> {
        let mut published = self.published.lock();
        if let Some(sender) = published.get(key) {
            return Some(sender.subscribe());
        }
        let sources = self.sources(key)?;
        let first = self.union(key, &sources, None);
        let (sender, endpoints) = watch::channel(first);
        published.insert(key.clone(), sender.clone());
        tokio::spawn(self.clone().publish(key.clone(), sender, sources));
        Some(endpoints)
    }

    /// Returns the number of watched sets of endpoints.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.published.lock().len()
    }

    /// Returns the number of unions that clients share.
    #[cfg(test)]
    pub(super) fn unions(&self) -> usize {
        self.unions.lock().len()
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
                        // It has the last version.
                        drop(sender);
                        self.unions.lock().sweep(&key.service);
                        return;
                    }
                    continue;
                }
                Some(Changed::Sources) => {}
                Some(Changed::Objects) => {
                    let membership = self.index.lock().membership(&key);
                    if membership.as_ref() == Some(&sources.membership) {
                        continue;
                    }
                }
            }
            let Some(next) = self.sources(&key) else {
                self.published.lock().remove(&key);
                self.unions.lock().forget(&key.service);
                return;
            };
            sources = next;
            let before = sender.borrow().clone();
            let after = self.union(&key, &sources, Some(&before));
            sender.send_if_modified(|current| {
                let is_changed = !Arc::ptr_eq(current, &after);
                *current = after;
                is_changed
            });
        }
    }

    /// Returns the endpoints of all members. If they are the ones from before, the version is.
    fn union(
        &self,
        key: &EndpointsKey,
        sources: &Sources,
        before: Option<&Arc<Version<EndpointSet>>>,
    ) -> Arc<Version<EndpointSet>> {
        let Sources {
            membership, sets, ..
        } = sources;
        let preference = membership.preference.as_ref();
        let preference = preference.map(|it| shared_preference(it, sets));
        let compute = || {
            let set = union(&key.service, sets, preference.as_ref());
            match before {
                Some(before) if **before.value() == set => before.clone(),
                Some(_) => {
                    let at = sets.iter().filter_map(|set| set.changed_at()).max();
                    Arc::new(Version::changed(set, at.unwrap_or_else(Instant::now)))
                }
                None => Arc::new(Version::new(set)),
            }
        };
        let mut unions = self.unions.lock();
        unions.find_or_insert(&key.service, sets, preference.as_ref(), compute)
    }

    /// Looks the members up.
    fn sources(&self, key: &EndpointsKey) -> Option<Sources> {
        let clusters = self.clusters.subscribe();
        let (membership, generation) = {
            let index = self.index.lock();
            (index.membership(key)?, index.generation())
        };
        let members = membership.members.clone();
        let named = |name: &Arc<str>| EndpointsKey {
            service: Name {
                namespace: key.service.namespace.clone(),
                name: name.clone(),
            },
            placed: membership.preference.is_some(),
            ..key.clone()
        };
        let mut sources = Sources {
            sets: Vec::new(),
            watched: Vec::new(),
            generation,
            clusters,
            membership: membership.clone(),
        };
        for local in &members.local {
            sources.add(&self.index, named(local));
        }
        for member in &members.remote {
            match self.clusters.get(&member.cluster) {
                Some(index) => sources.add(&index, named(&member.service)),
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
                    // Endpoints also end: with their cluster, or when their Service gets members.
                    let _ended = match source {
                        Watched::Endpoints(endpoints) => endpoints.changed().await,
                        Watched::Missing(generation) => generation.changed().await,
                    };
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
