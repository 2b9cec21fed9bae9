//! A data thread: a current-thread runtime that accepts, serves and opens its own connections.
//!
//! Data threads share snapshots (discovery, credentials), counters and the drain only. [`Worker`]
//! is the context of one thread, from which both directions are built.

use std::net::{IpAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_runtime::{descriptors, drain};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, LocalSet};
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::discovery::Discovery;
use crate::inbound::Inbound;
use crate::inbound::rate_limit::RateLimits;
use crate::memory::Memory;
use crate::outbound::Outbound;
use crate::redirection::ProbeListener;
use crate::telemetry::Families;
use crate::telemetry::labels::Direction;
use crate::tls::{Credentials, CredentialsRx};
use crate::transport::Scratch;
use crate::transport::listen::{AcceptedConnection, Listener};

/// The context of a data thread.
#[derive(Debug)]
pub struct Worker {
    pub config: Arc<Config>,
    pub discovery: Discovery,
    pub credentials: CredentialsRx,
    pub families: Arc<Families>,
    pub shared: Arc<ProcessState>,
    pub scratch: Rc<Scratch>,
    /// Recognises the connections that verify the redirection.
    pub probe_listener: Option<ProbeListener>,
    /// Connections, and tasks that outlive them, of all data threads.
    pub tasks: TaskTracker,
    pub drain: drain::Watch,
}

/// The parts of a data thread. They move to the thread, where they become a [`Worker`].
#[derive(Debug)]
pub struct WorkerParts {
    pub config: Arc<Config>,
    pub discovery: Discovery,
    pub credentials: CredentialsRx,
    pub families: Arc<Families>,
    pub shared: Arc<ProcessState>,
    pub probe_listener: Option<ProbeListener>,
    pub drain: drain::Watch,
    pub listeners: Listeners,
}

/// State that all data threads share.
#[derive(Debug)]
pub struct ProcessState {
    /// Connections, and tasks that outlive them. A draining proxy exits when there are none.
    pub tasks: TaskTracker,
    pub rate_limits: RateLimits,
    pub memory: Memory,
    /// One permit per inbound request that waits for its response headers.
    pub inbound_in_flight: Semaphore,
    /// One permit per outbound request that waits for its response headers.
    pub outbound_in_flight: Semaphore,
    /// One permit per connection.
    pub inbound_connections: Arc<Semaphore>,
    pub outbound_connections: Arc<Semaphore>,
}

/// The listening sockets of a data thread; see [`crate::transport::listen::bind`].
#[derive(Debug)]
pub struct Listeners {
    pub inbound: StdListener,
    /// One for each address family.
    pub outbound: Vec<StdListener>,
}

/// Serves until the drain starts, and then until no connection is left.
///
/// While connections are open, new ones are accepted: an application that is stopped together with
/// its proxy finishes its work, for which it may need other services. New connections drain from
/// their start: one request, or no further streams.
///
/// Accepting starts with the first certificate, without which peers cannot be authenticated. Until
/// then, connections wait in the listeners' backlog.
pub async fn run(parts: WorkerParts) -> std::io::Result<()> {
    LocalSet::new().run_until(serve(parts)).await
}

async fn serve(parts: WorkerParts) -> std::io::Result<()> {
    let worker = Rc::new(Worker {
        config: parts.config,
        discovery: parts.discovery,
        credentials: parts.credentials,
        families: parts.families,
        tasks: parts.shared.tasks.clone(),
        shared: parts.shared,
        scratch: Rc::default(),
        probe_listener: parts.probe_listener,
        drain: parts.drain,
    });
    tokio::select! {
        is_certified = worker.wait_for_certificate() => if !is_certified {
            // The control thread has ended, and the process is exiting.
            return Ok(());
        },
        () = worker.drain.draining() => return Ok(()),
    }

    let inbound = Rc::new(Inbound::new(worker.clone()));
    let outbound = Rc::new(Outbound::new(worker.clone()));
    let mut accepting = JoinSet::new();
    let listener = Listener::new(parts.listeners.inbound, worker.config.inbound.accept)?;
    let permits = worker.shared.inbound_connections.clone();
    let limit = ConnectionLimit(Direction::Inbound, permits);
    accepting.spawn_local(accept(listener, worker.clone(), limit, move |accepted| {
        inbound.clone().serve(accepted)
    }));
    for listener in parts.listeners.outbound {
        let listener = Listener::new(listener, worker.config.outbound.accept)?;
        let outbound = outbound.clone();
        let permits = worker.shared.outbound_connections.clone();
        let limit = ConnectionLimit(Direction::Outbound, permits);
        accepting.spawn_local(accept(listener, worker.clone(), limit, move |accepted| {
            outbound.clone().serve(accepted)
        }));
    }
    while accepting.join_next().await.is_some() {}
    // A loop may have accepted a connection after the others returned.
    worker.tasks.wait().await;
    Ok(())
}

/// The limit of concurrent connections of one direction.
struct ConnectionLimit(Direction, Arc<Semaphore>);

impl ConnectionLimit {
    /// Returns a permit for one more connection. Counts a connection that exceeds a limit.
    fn try_acquire(&self, worker: &Worker) -> Option<OwnedSemaphorePermit> {
        let reason = match self.1.clone().try_acquire_owned() {
            Ok(_permit) if worker.shared.memory.is_exceeded() => "memory",
            Ok(permit) => return Some(permit),
            Err(_none_left) => "connections",
        };
        let families = &worker.families;
        families.refused.connection(self.0, reason);
        tracing::debug!(
            direction = self.0.as_str(),
            reason,
            "Closed connection above the limit"
        );
        None
    }
}

/// Accepts until the proxy drains and no connection is left. Each connection is a task. A
/// connection above the limit is closed immediately, which costs less than one that waits and
/// informs the client.
async fn accept<F: Future<Output = ()> + 'static>(
    mut listener: Listener,
    worker: Rc<Worker>,
    limit: ConnectionLimit,
    serve: impl Fn(AcceptedConnection) -> F,
) {
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => {
                if let Some(permit) = limit.try_acquire(&worker) {
                    // An async block would contain the future twice: captured and awaited.
                    let serving = serve(accepted).map(move |()| drop(permit));
                    worker.tasks.spawn_local(serving);
                }
            }
            () = worker.wait_until_drained() => return,
        }
    }
}

/// How long protocol detection continues while the proxy drains: bytes that were sent before the
/// drain have arrived by then.
const DRAINING_DETECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The usual default of the limit of open files.
const DEFAULT_DESCRIPTORS: usize = 1024;

/// Returns the default limit of connections per direction: three quarters of the file descriptors.
/// The rest is for connections to applications and endpoints, of which HTTP needs few, and to the
/// control plane. Without a limit, clients of one direction could use all descriptors.
fn default_connections(descriptors: usize) -> usize {
    (descriptors / 4 * 3).max(1)
}

impl ProcessState {
    pub fn new(config: &Config) -> Self {
        let permits = |limit: usize| Semaphore::new(limit.min(Semaphore::MAX_PERMITS));
        let descriptors = descriptors::limit().unwrap_or(DEFAULT_DESCRIPTORS);
        let default = default_connections(descriptors);
        let connections = |limit: Option<usize>| Arc::new(permits(limit.unwrap_or(default)));
        Self {
            tasks: TaskTracker::new(),
            rate_limits: RateLimits::default(),
            memory: Memory::new(config.memory),
            inbound_in_flight: permits(config.inbound.max_in_flight),
            outbound_in_flight: permits(config.outbound.max_in_flight),
            inbound_connections: connections(config.inbound.max_connections),
            outbound_connections: connections(config.outbound.max_connections),
        }
    }
}

impl Worker {
    /// The current credentials. Present when connections are accepted.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Waits until the proxy drains and no connection is left.
    async fn wait_until_drained(&self) {
        self.drain.draining().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits for the first certificate. Returns false when the process exits before.
    async fn wait_for_certificate(&self) -> bool {
        let mut credentials = self.credentials.clone();
        credentials.wait_for(Option::is_some).await.is_ok()
    }

    /// Completes `detection` of a connection's protocol. `None` when the proxy drains and the
    /// client remains silent.
    pub async fn unless_draining<T>(
        &self,
        detection: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let timeout = async {
            self.drain.draining().await;
            tokio::time::sleep(DRAINING_DETECTION_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            detected = detection => Some(detected),
            () = timeout => None,
        }
    }

    /// Whether `ip` is an address of this pod.
    pub fn is_local(&self, ip: IpAddr) -> bool {
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
