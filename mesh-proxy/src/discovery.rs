//! Discovery of outbound destinations and of the policies of this pod's ports, as immutable
//! snapshots.
//!
//! The data threads look up [`Discovery`]. It returns a cached snapshot, or starts a task on the
//! control thread that receives the control plane's streams and publishes snapshots through a watch
//! channel. Once a snapshot exists, no request waits for the control plane: during an outage the
//! last snapshot stays in force.
//!
//! Entries that are unused for the configured time are evicted and their streams closed. The last
//! policy of a port stays cached; see [`ports`]. So does the last snapshot of a destination for
//! some minutes ([`last_values`]): the next look-up uses it if the control plane does not respond.

mod destination;
mod endpoints;
mod fallback;
mod inbound;
mod last_values;
mod merge;
mod outbound;
mod ports;
mod profile_updates;
mod target_object;
mod watch_cache;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::{AddressFamily, Endpoint};
use mesh_core::policy::outbound::OutboundPolicy;
use mesh_core::profile::Profile;
use mesh_core::resilience::Backoff;
use tokio::runtime::Handle;

pub(crate) use self::destination::{Destination, InvalidNameAddr, NameAddr};
use self::merge::ProfileResponse;
use self::outbound::LookupState;
use self::ports::PortTable;
pub(crate) use self::ports::{CurrentPolicy, PolicySource, PortPolicy, TooManyPorts};
pub(crate) use self::profile_updates::{ProfileUpdates, ServiceRoutes};
pub(crate) use self::target_object::TargetObject;
use self::watch_cache::WatchCache;
use crate::config::{Config, StreamLimits};
use crate::control::Client;
use crate::retry::RetryBudget;
use crate::watch;

/// Looks up destinations and ports. Clones share one cache.
#[derive(Clone)]
pub(crate) struct Discovery {
    inner: Arc<Inner>,
}

/// A snapshot of one outbound destination.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OutboundTarget {
    /// The original destination of the connection, or the name that requests select.
    pub(crate) destination: Destination,
    /// The policy, with the profile's opaque setting and TCP split applied. Synthesized if the
    /// policy service does not know the address.
    pub(crate) policy: OutboundPolicy,
    /// The object that an address belongs to, if that is known.
    pub(crate) object: Option<TargetObject>,
    /// The profile, whose routes and overrides apply to requests.
    pub(crate) profile: Option<Profile>,
    /// The retry budget of the profile. It continues while its settings stay the same.
    pub(crate) retry_budget: Option<Arc<RetryBudget>>,
}

impl OutboundTarget {
    /// Whether the address does not belong to `object` any more. A name belongs to any object that
    /// has it.
    pub(crate) fn replaces(&self, object: Option<&TargetObject>) -> bool {
        let is_other = |object: &TargetObject| object.is_replaced_by(self.object.as_ref());
        self.destination.addr().is_some() && object.is_some_and(is_other)
    }
}

/// The endpoints of one authority.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EndpointSet {
    pub(crate) state: EndpointState,
    /// Sorted by address. The labels of the set are merged into each endpoint. An unchanged
    /// endpoint is the same `Arc` as in the set before.
    pub(crate) endpoints: Vec<Arc<Endpoint>>,
}

/// The key of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EndpointsKey {
    /// `name:port`.
    authority: Arc<str>,
    /// The family of the address that the application connects to. A pod that has addresses of both
    /// families is reached at one of this family.
    family: Option<AddressFamily>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndpointState {
    /// The destination service has not responded yet.
    #[default]
    Pending,
    Known,
    DoesNotExist,
}

/// The reason why a destination could not be looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiscoveryError {
    #[error("the policy service rejected the lookup of {dst}: {reason}")]
    Refused { dst: Destination, reason: String },
    /// Only a profile tells whether the address has a proxy.
    #[error("the destination service rejected the lookup of {dst}: {reason}")]
    NoProfile { dst: Destination, reason: String },
    /// Unlike an address, a name without policy and profile has no destination.
    #[error("neither the policy service nor the destination service knows {dst}")]
    UnknownName { dst: Destination },
    #[error("{MAX_NAMES} other names are in use")]
    TooManyNames,
    #[error(
        "the control plane did not respond to the lookup of {dst} within {waited:?} (are its destination and policy services reachable?)"
    )]
    TimedOut { dst: Destination, waited: Duration },
    #[error("the proxy is shutting down")]
    Stopped,
}

struct Inner {
    context: Arc<Context>,
    runtime: Handle,
    outbound: Arc<WatchCache<Destination, LookupState>>,
    /// At most [`MAX_NAMES`].
    names: Arc<WatchCache<Destination, LookupState>>,
    endpoints: Arc<WatchCache<EndpointsKey, Arc<EndpointSet>>>,
    inbound: Arc<PortTable>,
    /// The profiles of the names that inbound requests have, at most [`MAX_PROFILES`].
    profiles: Arc<WatchCache<Destination, Option<ProfileResponse>>>,
}

/// The state shared by the tasks that receive the control plane's streams.
struct Context {
    /// Declared ports without a valid policy from the policy service.
    without_policy: watch::Sender<BTreeSet<u16>>,
    config: Arc<Config>,
    destination: Client,
    destination_limits: StreamLimits,
    policy: Client,
    policy_limits: StreamLimits,
}

/// How long a connection waits for the first snapshot of its destination. Linkerd's proxy sets no
/// limit here, but fails requests to an unreachable control plane after this time.
const FIRST_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of names that are looked up at a time. Requests choose them, possibly on behalf
/// of external clients, and each one has two streams to the control plane.
const MAX_NAMES: usize = 1024;

/// Maximum number of names of inbound requests whose profiles are looked up at a time. Clients
/// choose the names, each one has a stream to the control plane, and a pod has few of its own.
pub(crate) const MAX_PROFILES: usize = 256;

/// How long the look-up of a destination that was known waits for the control plane before its last
/// value is used. Less if the control plane cannot be reached. One second, as long as connections
/// wait for the first policy of a port.
const LAST_VALUE_AFTER: Duration = ports::FIRST_POLICY_TIMEOUT;

/// Maximum number of addresses, and of names, whose last snapshots are kept after they were unused.
const MAX_LAST_TARGETS: usize = 1024;

/// Maximum number of endpoints that are kept after their destinations were unused, at about 1 KB.
const MAX_LAST_ENDPOINTS: usize = 4096;

/// When to retry a lookup that the control plane has rejected or whose object it does not know.
const RETRY_REJECTED: Duration = Duration::from_secs(30);

impl Discovery {
    /// `runtime` is the control thread's.
    pub(crate) fn new(
        config: &Arc<Config>,
        destination: Client,
        policy: Client,
        runtime: Handle,
    ) -> Self {
        let settings = &config.discovery;
        let limits = |local| {
            if local {
                StreamLimits::NONE
            } else {
                settings.limits
            }
        };
        let context = Context {
            without_policy: watch::Sender::default(),
            destination_limits: limits(settings.destination.is_local()),
            policy_limits: limits(settings.policy.is_local()),
            config: config.clone(),
            destination,
            policy,
        };
        let inner = Inner {
            context: Arc::new(context),
            outbound: WatchCache::new(settings.outbound_idle, MAX_LAST_TARGETS, &runtime),
            names: WatchCache::new(settings.outbound_idle, MAX_LAST_TARGETS, &runtime),
            endpoints: WatchCache::new(settings.outbound_idle, MAX_LAST_ENDPOINTS, &runtime),
            inbound: PortTable::new(settings.inbound_idle, &runtime),
            profiles: WatchCache::new(settings.inbound_idle, 0, &runtime),
            runtime,
        };
        let discovery = Self {
            inner: Arc::new(inner),
        };
        discovery.watch_declared_ports();
        discovery
    }

    /// Returns the snapshots of a destination. Waits for the first one only.
    pub(crate) async fn outbound(
        &self,
        dst: impl Into<Destination>,
    ) -> Result<watch::Receiver<Arc<OutboundTarget>>, DiscoveryError> {
        let inner = &self.inner;
        let dst = dst.into();
        let cache = match &dst {
            Destination::Addr(_) => &inner.outbound,
            Destination::Name(_) if !inner.names.has_room_for(&dst, MAX_NAMES) => {
                return Err(DiscoveryError::TooManyNames);
            }
            Destination::Name(_) => &inner.names,
        };
        let start = |state, last| outbound::run(inner.context.clone(), dst.clone(), state, last);
        outbound::look_up(cache, &inner.runtime, &dst, start).await
    }

    /// Returns the endpoint sets of an authority (`name:port`), for clients that connect to an
    /// address of this family. The first one is [`EndpointState::Pending`].
    pub(crate) fn endpoints(
        &self,
        authority: &Arc<str>,
        family: Option<AddressFamily>,
    ) -> watch::Receiver<Arc<EndpointSet>> {
        let inner = &self.inner;
        let key = EndpointsKey {
            authority: authority.clone(),
            family,
        };
        inner.endpoints.find_or_start(
            &key,
            &inner.runtime,
            Arc::default,
            |sender, last| endpoints::run(inner.context.clone(), key.clone(), sender, last),
            watch::Sender::subscribe,
        )
    }

    /// Returns the policy of one of this pod's ports. A default or cached policy is in force until
    /// the policy service responds; see [`PortPolicy::wait_for_policy`].
    pub(crate) fn inbound(&self, port: u16) -> Result<PortPolicy, TooManyPorts> {
        self.watch(port, self.is_declared(port))
    }

    /// Returns the profile of a name that inbound requests have, which may not have arrived yet.
    /// `None` if too many others are in use. The name is within the configured suffixes.
    pub(crate) fn inbound_profile(&self, name: &NameAddr) -> Option<ProfileUpdates> {
        let inner = &self.inner;
        let name = Destination::Name(name.clone());
        if !inner.profiles.has_room_for(&name, MAX_PROFILES) {
            return None;
        }
        let start = |sender: watch::Sender<_>, _last| {
            let (context, name) = (inner.context.clone(), name.clone());
            async move { outbound::watch_profile(&context, &name, &sender).await }
        };
        let subscribe = watch::Sender::subscribe;
        let runtime = &inner.runtime;
        let profiles = &inner.profiles;
        let updates = profiles.find_or_start(&name, runtime, || None, start, subscribe);
        Some(ProfileUpdates::new(updates))
    }

    fn watch(&self, port: u16, is_declared: bool) -> Result<PortPolicy, TooManyPorts> {
        let inner = &self.inner;
        let config = &inner.context.config.inbound;
        let default = || inbound::default_policy(config, port);
        let deny = || inbound::deny_policy(config, port, "forgotten");
        inner.inbound.find_or_start(
            port,
            is_declared,
            &inner.runtime,
            [&default, &deny],
            |policy, usage| inbound::run(inner.context.clone(), port, policy, usage),
        )
    }

    /// Whether a port's policy is watched from the start: the ports that the pod declares, the
    /// admin port, and the inbound port of a gateway.
    fn is_declared(&self, port: u16) -> bool {
        let config = &self.inner.context.config;
        config.inbound.ports.contains(port) || self.own_ports().any(|own| own == port)
    }

    /// Returns the ports of the proxy itself that have a policy.
    fn own_ports(&self) -> impl Iterator<Item = u16> {
        let config = &self.inner.context.config;
        let inbound = config.inbound.is_gateway().then_some(config.inbound.listen);
        [config.admin.listen]
            .into_iter()
            .chain(inbound)
            .map(|addr| addr.port())
    }

    /// Watches the declared ports as long as the proxy runs, so that their own policy applies to
    /// their first connection.
    fn watch_declared_ports(&self) {
        let config = &self.inner.context.config;
        let declared = config.inbound.ports.ranges().iter().cloned().flatten();
        let ports: BTreeSet<u16> = declared.chain(self.own_ports()).collect();
        self.inner
            .context
            .without_policy
            .send_replace(ports.clone());
        for port in ports {
            // The limit does not apply to declared ports.
            let _policy = self.watch(port, true);
        }
    }

    /// Waits until the policy service has sent a valid policy for each declared port.
    pub(crate) async fn wait_for_declared_policies(&self) {
        let mut without = self.inner.context.without_policy.subscribe();
        // The sender lives as long as `self`.
        let _ = without.wait_for(BTreeSet::is_empty).await;
    }

    /// Returns the declared ports without a valid policy of the policy service.
    pub(crate) fn ports_without_policy(&self) -> Vec<u16> {
        let without = self.inner.context.without_policy.borrow();
        without.iter().copied().collect()
    }
}

impl Context {
    fn backoff(&self) -> Backoff {
        self.config.control.backoff
    }

    fn record_valid_policy(&self, port: u16) {
        self.without_policy
            .send_if_modified(|without| without.remove(&port));
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Discovery")
    }
}

#[cfg(test)]
pub(crate) mod tests;
