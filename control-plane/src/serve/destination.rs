//! `Destination`: endpoints of Services and profiles of destinations.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_api::destination::{profile_to_proto, update_to_proto};
use mesh_api::proto::destination::destination_server::Destination;
use mesh_api::proto::destination::{DestinationProfile, GetDestination, Update};
use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use mesh_core::profile::Profile;
use mesh_runtime::drain;
use parking_lot::Mutex;
use tonic::{Request, Response, Status, async_trait};

use super::authority::{Authority, AuthorityError};
use super::calls::{Calls, Method, OpenStream};
use super::workload::ClientContext;
use super::{Step, Updates, updates};
use crate::index::{
    DestinationIndex, EndpointSet, EndpointsError, EndpointsKey, ProfileError, ProfileKey,
    ProfileTarget, Subscription,
};

#[derive(Debug)]
pub struct DestinationService {
    // Locked while a value is looked up, never across an await.
    index: Arc<Mutex<DestinationIndex>>,
    cluster_domain: Arc<str>,
    drain: drain::Watch,
    get: Method,
    get_profile: Method,
}

impl DestinationService {
    pub fn new(index: Arc<Mutex<DestinationIndex>>, drain: drain::Watch, calls: &Calls) -> Self {
        let cluster_domain = index.lock().settings().cluster_domain.clone();
        let service = "io.linkerd.proxy.destination.Destination";
        Self {
            index,
            cluster_domain,
            drain,
            get: calls.method(service, "Get"),
            get_profile: calls.method(service, "GetProfile"),
        }
    }

    fn endpoints(&self, request: &Request<GetDestination>) -> Result<Updates<Update>, Status> {
        let stream = self.get.open(request)?;
        let request = request.get_ref();
        let context = ClientContext::parse(&request.context_token);
        let authority = Authority::parse(&request.path, &self.cluster_domain)?;
        let (service, instance, port) = match authority {
            Authority::Service {
                service,
                instance,
                port,
                ..
            } => (service, instance, port),
            Authority::Addr(_) => {
                return Err(Status::invalid_argument(
                    "IP queries not supported by Get; use the name of the service",
                ));
            }
            Authority::External { .. } => return Err(AuthorityError::new(&request.path).into()),
        };
        let key = EndpointsKey {
            service,
            port,
            hostname: instance,
            node: (!context.node.is_empty()).then(|| context.node.into()),
        };
        let subscription = self.index.lock().endpoints(key.clone())?;
        tracing::debug!(path = request.path, pod = context.pod, "Watching endpoints");
        // The set itself is shared with the index and the other streams.
        let mut sent = Arc::<EndpointSet>::default();
        let step = move |now: &Arc<EndpointSet>| {
            let changes = changes(&sent.endpoints, now);
            sent = now.clone();
            Step::Send(changes.iter().map(update_to_proto).collect())
        };
        Ok(self.send(subscription, stream, step, move |index| {
            index.has_endpoints(&key)
        }))
    }

    fn profile(
        &self,
        request: &Request<GetDestination>,
    ) -> Result<Updates<DestinationProfile>, Status> {
        let stream = self.get_profile.open(request)?;
        let request = request.get_ref();
        let context = ClientContext::parse(&request.context_token);
        let target = match Authority::parse(&request.path, &self.cluster_domain)? {
            Authority::Addr(addr) => ProfileTarget::Addr(addr),
            Authority::External { host, port } => ProfileTarget::External { host, port },
            Authority::Service {
                service,
                instance: None,
                port,
                host: fqn,
            } => ProfileTarget::Service { service, port, fqn },
            Authority::Service {
                service,
                instance: Some(hostname),
                port,
                ..
            } => ProfileTarget::Instance {
                service,
                hostname,
                port,
            },
        };
        let key = ProfileKey {
            target,
            client_namespace: context.namespace().into(),
        };
        let subscription = self.index.lock().profile(key.clone())?;
        tracing::debug!(path = request.path, pod = context.pod, "Watching a profile");
        let step = |profile: &Arc<Profile>| Step::Send(vec![profile_to_proto(profile)]);
        Ok(self.send(subscription, stream, step, move |index| {
            index.has_profile(&key)
        }))
    }

    /// Sends the values of a subscription. An uncached value is sent once, and the stream ends when
    /// `exists` returns `true` for its target: the next request of the client gets a cached value.
    fn send<V, M>(
        &self,
        subscription: Subscription<V>,
        stream: OpenStream,
        mut step: impl FnMut(&Arc<V>) -> Step<M> + Send + 'static,
        exists: impl Fn(&DestinationIndex) -> bool + Send + 'static,
    ) -> Updates<M>
    where
        V: Send + Sync + 'static,
        M: Send + 'static,
    {
        let drain = self.drain.clone();
        let (value, generation) = match subscription {
            Subscription::Cached(values) => return updates(values, drain, stream, step),
            Subscription::Uncached { value, generation } => (value, generation),
        };
        let index = self.index.clone();
        let mut first = Some(Arc::new(value));
        let step = move |_count: &Arc<u64>| match first.take() {
            Some(value) => step(&value),
            None if exists(&index.lock()) => Step::End,
            None => Step::Send(Vec::new()),
        };
        updates(generation, drain, stream, step)
    }
}

#[async_trait]
impl Destination for DestinationService {
    type GetStream = Updates<Update>;
    type GetProfileStream = Updates<DestinationProfile>;

    async fn get(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetStream>, Status> {
        self.get.count(self.endpoints(&request)).map(Response::new)
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        self.get_profile
            .count(self.profile(&request))
            .map(Response::new)
    }
}

/// Returns the difference between the endpoints that were sent and the current ones. Additions come
/// first, so that a client is never without endpoints in between. An initially empty set has no
/// message.
fn changes(sent: &BTreeMap<SocketAddr, Endpoint>, now: &EndpointSet) -> Vec<EndpointUpdate> {
    let added: Vec<Endpoint> = now
        .endpoints
        .iter()
        .filter(|(addr, endpoint)| sent.get(addr) != Some(endpoint))
        .map(|(_, endpoint)| endpoint.clone())
        .collect();
    let removed: Vec<SocketAddr> = sent
        .keys()
        .filter(|addr| !now.endpoints.contains_key(addr))
        .copied()
        .collect();
    let mut changes = Vec::new();
    if !added.is_empty() {
        changes.push(EndpointUpdate::Add {
            endpoints: added,
            set_labels: now.labels.clone(),
        });
    }
    if !removed.is_empty() {
        changes.push(EndpointUpdate::Remove(removed));
    }
    changes
}

impl From<AuthorityError> for Status {
    fn from(error: AuthorityError) -> Self {
        Status::invalid_argument(error.to_string())
    }
}

impl From<EndpointsError> for Status {
    fn from(error: EndpointsError) -> Self {
        let message = error.to_string();
        match error {
            EndpointsError::NoSuchService(_) => Status::not_found(message),
            EndpointsError::ExternalName(_) => Status::invalid_argument(message),
        }
    }
}

impl From<ProfileError> for Status {
    fn from(error: ProfileError) -> Self {
        let message = error.to_string();
        match error {
            // Not NOT_FOUND: Linkerd returns the error of Kubernetes here, and proxies retry both.
            ProfileError::NoSuchService(_) => Status::unknown(message),
            ProfileError::NoSuchInstance(..) => Status::not_found(message),
            ProfileError::ExternalName(_) => Status::invalid_argument(message),
            ProfileError::AmbiguousService(..) | ProfileError::AmbiguousPod(..) => {
                Status::failed_precondition(message)
            }
        }
    }
}

#[cfg(test)]
mod tests;
