//! [`Answers`]: a control plane that answers from tables.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::destination::{DestinationProfile, GetDestination, Update};
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::inbound::{PortSpec, Server};
use mesh_api::proto::outbound::TrafficSpec;
use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::policy::outbound::Target;
use mesh_core::profile::Profile;
use mesh_test_support::control_plane::{MessageSender, Messages, Script, channel};
use parking_lot::Mutex;
use tonic::{Status, async_trait};

/// The responses of a control plane, by their subject. A change is sent on open streams, too.
/// Clones are the same control plane.
///
/// Unless it is set, a destination has an empty profile and no policy, an authority does not exist,
/// and a port allows all clients and detects its protocol.
#[derive(Clone, Default)]
pub struct Answers {
    // Changed and read by tasks of one thread.
    tables: Arc<Mutex<Tables>>,
}

#[derive(Default)]
struct Tables {
    /// By `address:port` or `name:port`.
    profiles: Table<String, DestinationProfile>,
    /// By `address:port` or `name:port`.
    outbound: Table<String, ExtendedPolicy>,
    inbound: Table<u16, Server>,
    /// By `name:port`. Their streams carry changes, which differ from the values.
    endpoints: BTreeMap<String, Vec<Endpoint>>,
    endpoint_streams: BTreeMap<String, Vec<MessageSender<Update>>>,
}

struct Table<K, M> {
    values: BTreeMap<K, M>,
    streams: BTreeMap<K, Vec<MessageSender<M>>>,
}

/// How long the protocol of a port is detected unless a policy says otherwise.
pub(super) const DETECT_TIMEOUT: Duration = Duration::from_secs(10);

impl<K, M> Default for Table<K, M> {
    fn default() -> Self {
        Self {
            values: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, M: Clone + Send + 'static> Table<K, M> {
    fn set(&mut self, key: K, value: M) {
        if let Some(streams) = self.streams.get_mut(&key) {
            streams.retain(|stream| stream.send(Ok(value.clone())).is_ok());
        }
        self.values.insert(key, value);
    }

    /// Opens a stream that begins with the value.
    fn open(&mut self, key: K, value: M) -> Messages<M> {
        let (sender, messages) = channel();
        // The receiver exists.
        let _sent = sender.send(Ok(value));
        self.streams.entry(key).or_default().push(sender);
        messages
    }
}

impl Answers {
    /// A control plane that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the profile of an address (`address:port`) or an authority (`name:port`).
    pub fn set_profile(&self, destination: impl ToString, profile: &Profile) {
        let profile = mesh_api::destination::profile_to_proto(profile);
        let mut tables = self.tables.lock();
        tables.profiles.set(destination.to_string(), profile);
    }

    /// Sets the endpoints of an authority (`name:port`).
    pub fn set_endpoints(&self, authority: impl ToString, endpoints: Vec<Endpoint>) {
        let authority = authority.to_string();
        let tables = &mut *self.tables.lock();
        let before = tables.endpoints.get(&authority);
        let removed = before.into_iter().flatten().map(|endpoint| endpoint.addr);
        let removed: Vec<SocketAddr> = removed
            .filter(|addr| !endpoints.iter().any(|endpoint| endpoint.addr == *addr))
            .collect();
        if let Some(streams) = tables.endpoint_streams.get_mut(&authority) {
            let mut updates = vec![add(&endpoints)];
            if !removed.is_empty() {
                let remove = EndpointUpdate::Remove(removed);
                updates.push(mesh_api::destination::update_to_proto(&remove));
            }
            for update in updates {
                streams.retain(|stream| stream.send(Ok(update.clone())).is_ok());
            }
        }
        tables.endpoints.insert(authority, endpoints);
    }

    /// Sets the policy of an address (`address:port`) or an authority (`name:port`).
    pub fn set_outbound(&self, destination: impl ToString, policy: ExtendedPolicy) {
        let mut tables = self.tables.lock();
        tables.outbound.set(destination.to_string(), policy);
    }

    /// Sets the policy of a port, in all pods.
    pub fn set_inbound(&self, port: u16, policy: Server) {
        self.tables.lock().inbound.set(port, policy);
    }
}

/// A policy that allows all clients.
pub(super) fn allow_all(is_opaque: bool) -> Server {
    policy(DefaultPolicy::AllUnauthenticated, is_opaque)
}

/// A policy that denies all clients.
pub(super) fn deny_all(is_opaque: bool) -> Server {
    policy(DefaultPolicy::Deny, is_opaque)
}

fn policy(policy: DefaultPolicy, is_opaque: bool) -> Server {
    mesh_api::inbound::to_proto(&policy.server_policy(&[], DETECT_TIMEOUT, is_opaque))
}

fn add(endpoints: &[Endpoint]) -> Update {
    mesh_api::destination::update_to_proto(&EndpointUpdate::Add {
        endpoints: endpoints.to_vec(),
        set_labels: Default::default(),
    })
}

#[async_trait]
impl Script for Answers {
    async fn endpoints(&self, request: GetDestination) -> Result<Messages<Update>, Status> {
        let mut tables = self.tables.lock();
        let update = match tables.endpoints.get(&request.path) {
            Some(endpoints) => add(endpoints),
            None => {
                mesh_api::destination::update_to_proto(&EndpointUpdate::Empty { exists: false })
            }
        };
        let (sender, messages) = channel();
        // The receiver exists.
        let _sent = sender.send(Ok(update));
        let streams = tables.endpoint_streams.entry(request.path).or_default();
        streams.push(sender);
        Ok(messages)
    }

    async fn profile(
        &self,
        request: GetDestination,
    ) -> Result<Messages<DestinationProfile>, Status> {
        let mut tables = self.tables.lock();
        let profile = tables.profiles.values.get(&request.path).cloned();
        let profile =
            profile.unwrap_or_else(|| mesh_api::destination::profile_to_proto(&Profile::default()));
        Ok(tables.profiles.open(request.path, profile))
    }

    async fn outbound(&self, request: TrafficSpec) -> Result<Messages<ExtendedPolicy>, Status> {
        let destination = destination(request)?;
        let mut tables = self.tables.lock();
        match tables.outbound.values.get(&destination).cloned() {
            Some(policy) => Ok(tables.outbound.open(destination, policy)),
            None => Err(Status::not_found("no service")),
        }
    }

    async fn inbound(&self, request: PortSpec) -> Result<Messages<Server>, Status> {
        let port = u16::try_from(request.port);
        let port = port.map_err(|_too_large| Status::invalid_argument("port"))?;
        let mut tables = self.tables.lock();
        let policy = tables.inbound.values.get(&port).cloned();
        let policy = policy.unwrap_or_else(|| allow_all(false));
        Ok(tables.inbound.open(port, policy))
    }

    async fn certify(&self, _request: CertifyRequest) -> Result<CertifyResponse, Status> {
        Err(Status::unimplemented("the world issues certificates"))
    }
}

/// Returns the key of a destination's policy.
fn destination(request: TrafficSpec) -> Result<String, Status> {
    match mesh_api::outbound::target(request.target) {
        Ok(Target::Addr(addr)) => Ok(addr.to_string()),
        Ok(Target::Authority(authority)) => Ok(authority.to_string()),
        Err(error) => Err(Status::invalid_argument(error.to_string())),
    }
}
