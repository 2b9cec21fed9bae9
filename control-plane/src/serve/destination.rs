//! `Destination`: endpoints of Services and profiles of destinations.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use mesh_api::destination::{
    ExtendedRequest, LEVEL_HEADER, extended_profile_to_proto, requested_family,
};
use mesh_api::proto::destination::GetDestination;
use mesh_api::proto::destination::destination_server::SERVICE_NAME;
use mesh_cluster::calls::{Calls, Method, OpenStream};
use mesh_core::profile::Profile;
use mesh_runtime::drain;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Request, Status};

use super::authority::{Authority, AuthorityError};
use super::grpc::{Methods, encode, respond_with_stream, unknown_method, whole};
use super::updates::{Dated, Step, Updates, updates};
use super::workload::ClientContext;
use crate::index::{
    DestinationIndex, EndpointSet, EndpointsError, EndpointsKey, ProfileError, ProfileKey,
    ProfileTarget, Subscription, Version,
};
use crate::remote::{Clusters, RemoteDiscovery};

mod endpoint_messages;

#[derive(Debug)]
pub struct DestinationService {
    // Locked while a value is looked up, never across an await.
    index: Arc<Mutex<DestinationIndex>>,
    remote: Arc<RemoteDiscovery>,
    cluster_domain: Arc<str>,
    drain: drain::Watch,
    get: Method,
    get_profile: Method,
}

impl DestinationService {
    pub fn new(index: Arc<Mutex<DestinationIndex>>, drain: drain::Watch, calls: &Calls) -> Self {
        let cluster_domain = index.lock().settings().cluster_domain.clone();
        let remote = RemoteDiscovery::new(index.clone(), Clusters::default());
        Self {
            index,
            remote,
            cluster_domain,
            drain,
            get: calls.method(SERVICE_NAME, "Get"),
            get_profile: calls.method(SERVICE_NAME, "GetProfile"),
        }
    }

    /// Finds the endpoints of Services with members elsewhere in these clusters.
    #[must_use]
    pub(crate) fn with_clusters(self, clusters: Clusters) -> Self {
        let remote = RemoteDiscovery::new(self.index.clone(), clusters);
        Self { remote, ..self }
    }

    /// Returns the updates, and the level of locality that the first one is of.
    fn endpoints(
        &self,
        request: &Request<ExtendedRequest>,
    ) -> Result<(Updates<Bytes>, Option<&'static str>), Status> {
        let family = requested_family(request.get_ref());
        let context = ClientContext::parse(&request.get_ref().standard.context_token);
        let stream = self.get.open(request, &context.pod)?;
        let request = &request.get_ref().standard;
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
            family,
            placed: false,
        };
        let members = self.remote.endpoints(&key);
        let subscription = match members {
            Some(endpoints) => Subscription::Cached(endpoints),
            None => self.index.lock().endpoints(key.clone())?,
        };
        let level = match &subscription {
            Subscription::Cached(endpoints) => endpoints.borrow().level,
            Subscription::Uncached { value, .. } => value.level,
        };
        tracing::debug!(path = request.path, pod = context.pod, "Watching endpoints");
        let encoded = self.get.encoded();
        let mut sent: Option<Arc<EndpointSet>> = None;
        let step = move |now: &Arc<Version<EndpointSet>>| {
            let messages = now.messages(sent.as_ref(), || {
                let messages = endpoint_messages::difference(sent.as_deref(), now);
                encoded.inc_by(messages.len() as u64);
                messages.iter().map(encode).collect()
            });
            sent = Some(now.value().clone());
            Step::Send(messages.to_vec())
        };
        let updates = self.send(subscription, stream, step, move |index| {
            index.has_endpoints(&key) || index.membership(&key).is_some()
        });
        Ok((updates, level))
    }

    fn profile(&self, request: &Request<GetDestination>) -> Result<Updates<Bytes>, Status> {
        let context = ClientContext::parse(&request.get_ref().context_token);
        let stream = self.get_profile.open(request, &context.pod)?;
        let request = request.get_ref();
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
        let encoded = self.get_profile.encoded();
        let step = move |profile: &Arc<Version<Profile>>| {
            whole(profile, &encoded, || extended_profile_to_proto(profile))
        };
        Ok(self.send(subscription, stream, step, move |index| {
            index.has_profile(&key)
        }))
    }

    /// Sends the values of a subscription. An uncached value is sent once, and the stream ends when
    /// `exists` returns `true` for its target: the next request of the client gets a cached value.
    fn send<V: Send + Sync + 'static>(
        &self,
        subscription: Subscription<V>,
        stream: OpenStream,
        mut step: impl FnMut(&Arc<Version<V>>) -> Step<Bytes> + Send + 'static,
        exists: impl Fn(&DestinationIndex) -> bool + Send + 'static,
    ) -> Updates<Bytes> {
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

/// The number of changes, which has no messages of its own.
impl Dated for u64 {
    fn changed_at(&self) -> Option<Instant> {
        None
    }
}

impl Methods for DestinationService {
    const NAME: &'static str = SERVICE_NAME;

    async fn call(&self, method: &str, request: http::Request<Body>) -> http::Response<Body> {
        let mut level = None;
        let get = |request| {
            let (updates, of_first) = self.get.count(self.endpoints(&request))?;
            level = of_first;
            Ok(updates)
        };
        let get_profile = |request| self.get_profile.count(self.profile(&request));
        match method {
            "Get" => {
                let mut response = respond_with_stream(request, get).await;
                if let Some(level) = level {
                    let headers = response.headers_mut();
                    headers.insert(LEVEL_HEADER, HeaderValue::from_static(level));
                }
                response
            }
            "GetProfile" => respond_with_stream(request, get_profile).await,
            _ => unknown_method(),
        }
    }
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
            ProfileError::AmbiguousService(..)
            | ProfileError::AmbiguousPod(..)
            | ProfileError::AmbiguousWorkload(..) => Status::failed_precondition(message),
        }
    }
}

#[cfg(test)]
mod tests;
