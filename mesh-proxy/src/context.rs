//! What a connection needs and does not own: configuration, snapshots, metrics and limits.
//!
//! [`ProxyContext`] belongs to one thread and [`ProcessState`] to all of them. Both directions take
//! their parts from here; nothing here depends on them.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_runtime::{descriptors, drain};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::access_log::AccessLog;
use crate::balance::Breakers;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::http::server::Server;
use crate::limits::memory::Memory;
use crate::limits::rate_limit::RateLimits;
use crate::limits::replay_memory::ReplayMemory;
use crate::redirection::ProbeListener;
use crate::tap::Tap;
use crate::telemetry::Families;
use crate::telemetry::labels::Direction;
use crate::tls::{Credentials, CredentialsRx};
use crate::trace::Tracer;
use crate::transport::Scratch;

/// The context of the connections of one thread.
#[derive(Debug)]
pub(crate) struct ProxyContext {
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) credentials: CredentialsRx,
    pub(crate) families: Arc<Families>,
    pub(crate) shared: Arc<ProcessState>,
    pub(crate) scratch: Rc<Scratch>,
    /// Recognises the connections that verify the redirection.
    pub(crate) probe_listener: Option<ProbeListener>,
    /// Connections, and tasks that outlive them, of all data threads.
    pub(crate) tasks: TaskTracker,
    pub(crate) drain: drain::Watch,
}

/// State that all data threads share.
#[derive(Debug)]
pub(crate) struct ProcessState {
    /// Connections, and tasks that outlive them. A draining proxy exits when there are none.
    pub(crate) tasks: TaskTracker,
    pub(crate) rate_limits: RateLimits,
    pub(crate) breakers: Breakers,
    pub(crate) memory: Memory,
    /// For the bodies of requests that may be sent again.
    pub(crate) replay_memory: Arc<ReplayMemory>,
    pub(crate) tap: Arc<Tap>,
    /// `None`: no access log.
    pub(crate) access_log: Option<AccessLog>,
    /// `None`: no distributed tracing.
    pub(crate) tracer: Option<Tracer>,
    /// One permit per inbound request that waits for its response headers.
    pub(crate) inbound_in_flight: Semaphore,
    /// One permit per outbound request that waits for its response headers.
    pub(crate) outbound_in_flight: Semaphore,
    /// One permit per copy of a request for a mirror.
    pub(crate) mirrors_in_flight: Arc<Semaphore>,
    /// One permit per connection.
    pub(crate) inbound_connections: Arc<Semaphore>,
    pub(crate) outbound_connections: Arc<Semaphore>,
}

/// The usual default of the limit of open files.
const DEFAULT_DESCRIPTORS: usize = 1024;

/// Returns the default limit of connections per direction: three quarters of the file descriptors.
/// The rest is for connections to applications and endpoints (HTTP needs few), and to the control
/// plane. Without a limit, clients of one direction could use all descriptors.
fn default_connections(descriptors: usize) -> usize {
    (descriptors / 4 * 3).max(1)
}

impl ProcessState {
    pub(crate) fn new(config: &Config, tap: Arc<Tap>) -> Self {
        let permits = |limit: usize| Semaphore::new(limit.min(Semaphore::MAX_PERMITS));
        let descriptors = descriptors::limit().unwrap_or(DEFAULT_DESCRIPTORS);
        let default = default_connections(descriptors);
        let connections = |limit: Option<usize>| Arc::new(permits(limit.unwrap_or(default)));
        Self {
            tasks: TaskTracker::new(),
            rate_limits: RateLimits::default(),
            breakers: Breakers::default(),
            memory: Memory::new(config.memory),
            replay_memory: Arc::new(ReplayMemory::new(config.outbound.max_replay_bytes)),
            tap,
            access_log: None,
            tracer: None,
            inbound_in_flight: permits(config.inbound.max_in_flight),
            outbound_in_flight: permits(config.outbound.max_in_flight),
            mirrors_in_flight: Arc::new(permits(config.outbound.max_mirrors)),
            inbound_connections: connections(config.inbound.max_connections),
            outbound_connections: connections(config.outbound.max_connections),
        }
    }
}

impl ProxyContext {
    /// Returns the HTTP server of one direction.
    pub(crate) fn http_server(&self, direction: Direction) -> Server {
        let refused = self.families.refused.clone();
        let (scratch, drain) = (self.scratch.clone(), self.drain.clone());
        Server::new(direction, &self.config, refused, scratch, drain)
    }

    /// The current credentials. Present when connections are accepted.
    pub(crate) fn credentials(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Waits until the proxy drains and no connection is left.
    pub(crate) async fn wait_until_drained(&self) {
        self.drain.draining().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits for the first certificate. Returns false when the process exits before.
    pub(crate) async fn wait_for_certificate(&self) -> bool {
        let mut credentials = self.credentials.clone();
        credentials.wait_for(Option::is_some).await.is_ok()
    }

    /// Whether `ip` is an address of this pod.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        self.config.inbound.ips.contains(&ip.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_direction_cannot_use_all_descriptors() {
        assert_eq!(default_connections(4096), 3072);
    }
}
