//! What the control plane says about destinations and about this pod's ports, as immutable
//! snapshots.
//!
//! [`Discovery`] is used from the data threads. It answers from a table when it can; otherwise it
//! starts a task on the control thread that follows the control plane's streams and publishes what
//! they say through a watch channel. Once a snapshot exists nobody waits for the control plane
//! again: when it is gone, the last snapshot stays in force.
//!
//! What was not used for the configured time is forgotten, and its streams are closed. Of a port's
//! policy the last answer is remembered; see [`ports`].

mod endpoints;
mod fallback;
mod inbound;
mod outbound;
mod ports;
mod settle;
mod shared;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::policy::outbound::OutboundPolicy;
use mesh_core::profile::Profile;
use mesh_core::resilience::Backoff;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::outbound::Slot;
use self::ports::Ports;
pub use self::ports::{Basis, Current, PortPolicy, TooManyPorts};
use self::shared::Shared;
use crate::config::{Config, StreamLimits};
use crate::control::Client;

/// Looks destinations and ports up. Clones share one table.
#[derive(Clone)]
pub struct Discovery {
    inner: Arc<Inner>,
}

/// All that is known of one outbound destination.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboundTarget {
    /// Where the application wanted to connect to.
    pub addr: SocketAddr,
    /// Made here when the policy service knows nothing of the address. What the profile says of
    /// connections is in it.
    pub policy: OutboundPolicy,
    /// What it says of requests.
    pub profile: Option<Profile>,
}

/// The endpoints of one authority.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointSet {
    pub state: EndpointState,
    /// In order of address. Labels of the whole set are merged into each; an endpoint that did not
    /// change is the same `Arc` as in the set before.
    pub endpoints: Vec<Arc<Endpoint>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointState {
    /// The destination service has not answered yet.
    #[default]
    Pending,
    Known,
    DoesNotExist,
}

/// Why a destination cannot be connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    #[error("the policy service refuses to answer for {dst}: {reason}")]
    Refused { dst: SocketAddr, reason: String },
    /// Without one it cannot be told whether the address has a proxy.
    #[error("the destination service refuses to answer for {dst}: {reason}")]
    NoProfile { dst: SocketAddr, reason: String },
    #[error(
        "the control plane did not answer for {dst} within {waited:?} (are its destination and policy services reachable?)"
    )]
    TimedOut { dst: SocketAddr, waited: Duration },
    #[error("the proxy is shutting down")]
    Stopped,
}

struct Inner {
    context: Arc<Context>,
    runtime: Handle,
    outbound: Arc<Shared<SocketAddr, Slot>>,
    endpoints: Arc<Shared<Arc<str>, Arc<EndpointSet>>>,
    inbound: Arc<Ports>,
}

/// What the tasks that follow streams need.
struct Context {
    /// Declared ports for which the policy service has not given a policy that can be read.
    without_policy: watch::Sender<BTreeSet<u16>>,
    config: Arc<Config>,
    destination: Client,
    destination_limits: StreamLimits,
    policy: Client,
    policy_limits: StreamLimits,
}

/// How long a connection waits for the first answer about its destination. Linkerd's proxy sets no
/// limit here, but fails requests to an unreachable control plane after this long.
const FIRST_ANSWER: Duration = Duration::from_secs(30);

/// When to ask again for what the control plane does not know (yet).
const ASK_AGAIN: Duration = Duration::from_secs(30);

impl Discovery {
    /// `runtime` is the control thread's.
    pub fn new(config: &Arc<Config>, destination: Client, policy: Client, runtime: Handle) -> Self {
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
            outbound: Shared::new(settings.outbound_idle, &runtime),
            endpoints: Shared::new(settings.outbound_idle, &runtime),
            inbound: Ports::new(settings.inbound_idle, &runtime),
            runtime,
        };
        let discovery = Self {
            inner: Arc::new(inner),
        };
        discovery.watch_declared_ports();
        discovery
    }

    /// What is known of a destination. Waits for the first answer only; later ones arrive through
    /// the receiver.
    pub async fn outbound(
        &self,
        dst: SocketAddr,
    ) -> Result<watch::Receiver<Arc<OutboundTarget>>, DiscoveryError> {
        let inner = &self.inner;
        let start = |slot| outbound::keep(inner.context.clone(), dst, slot);
        outbound::look_up(&inner.outbound, &inner.runtime, dst, start).await
    }

    /// The endpoints of an authority (`name:port`). Starts pending.
    pub fn endpoints(&self, authority: &Arc<str>) -> watch::Receiver<Arc<EndpointSet>> {
        let inner = &self.inner;
        inner.endpoints.find_or_start(
            authority,
            &inner.runtime,
            Arc::default,
            |sender| endpoints::keep(inner.context.clone(), authority.clone(), sender),
            watch::Sender::subscribe,
        )
    }

    /// The policy of one of this pod's ports. It holds before the first answer, too; see
    /// [`PortPolicy::wait_for_policy`].
    pub fn inbound(&self, port: u16) -> Result<PortPolicy, TooManyPorts> {
        self.watch(port, self.declared(port))
    }

    fn watch(&self, port: u16, is_declared: bool) -> Result<PortPolicy, TooManyPorts> {
        let inner = &self.inner;
        let config = &inner.context.config.inbound;
        let default = || inbound::default_policy(config, port);
        let refusing = || inbound::refusing(config, port, "forgotten");
        inner.inbound.find_or_start(
            port,
            is_declared,
            &inner.runtime,
            [&default, &refusing],
            |policy, usage| inbound::keep(inner.context.clone(), port, policy, usage),
        )
    }

    /// The ports whose policy is watched from the start: those that are declared in the pod, and
    /// the admin port.
    fn declared(&self, port: u16) -> bool {
        let config = &self.inner.context.config;
        config.inbound.ports.contains(port) || config.admin.listen.port() == port
    }

    /// Declared ports are watched as long as the proxy runs: their first connection is judged by
    /// their own policy.
    fn watch_declared_ports(&self) {
        let config = &self.inner.context.config;
        let declared = config.inbound.ports.ranges().iter().cloned().flatten();
        let ports: BTreeSet<u16> = declared.chain([config.admin.listen.port()]).collect();
        self.inner
            .context
            .without_policy
            .send_replace(ports.clone());
        for port in ports {
            // There is always room for declared ports.
            let _policy = self.watch(port, true);
        }
    }

    /// Waits until the policy service has given each declared port a policy that can be read.
    pub async fn policies_known(&self) {
        let mut without = self.inner.context.without_policy.subscribe();
        // The sender lives as long as `self`.
        let _ = without.wait_for(BTreeSet::is_empty).await;
    }

    /// The declared ports for which it has not.
    pub fn ports_without_policy(&self) -> Vec<u16> {
        let without = self.inner.context.without_policy.borrow();
        without.iter().copied().collect()
    }
}

impl Context {
    fn backoff(&self) -> Backoff {
        self.config.control.backoff
    }

    fn policy_known(&self, port: u16) {
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
