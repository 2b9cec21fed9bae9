//! A data thread: one current-thread runtime that accepts, serves and opens connections of its own.
//!
//! Runs on the data threads, N times. Shares with the other threads only snapshots (discovery,
//! credentials), counters and the drain. What one thread needs everywhere is in [`Worker`]; the two
//! directions are built from it and live as long as the thread.

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
use crate::redirection::Witness;
use crate::telemetry::Families;
use crate::telemetry::labels::Direction;
use crate::tls::{Credentials, CredentialsRx};
use crate::transport::Scratch;
use crate::transport::listen::{AcceptedConnection, Listener};

/// What everything on one data thread uses.
#[derive(Debug)]
pub struct Worker {
    pub config: Arc<Config>,
    pub discovery: Discovery,
    pub credentials: CredentialsRx,
    pub families: Arc<Families>,
    pub shared: Arc<Shared>,
    pub scratch: Rc<Scratch>,
    /// Where redirection is checked.
    pub witness: Option<Witness>,
    /// Connections and what outlives them, of all data threads.
    pub tasks: TaskTracker,
    pub drain: drain::Watch,
}

/// What one data thread is made of. Moves to the thread, where it becomes a [`Worker`].
#[derive(Debug)]
pub struct Parts {
    pub config: Arc<Config>,
    pub discovery: Discovery,
    pub credentials: CredentialsRx,
    pub families: Arc<Families>,
    pub shared: Arc<Shared>,
    pub witness: Option<Witness>,
    pub drain: drain::Watch,
    pub listeners: Listeners,
}

/// What holds for the process, so that the data threads keep it together.
#[derive(Debug)]
pub struct Shared {
    /// Connections and what outlives them. A proxy that drains ends when there are none.
    pub tasks: TaskTracker,
    pub rate_limits: RateLimits,
    pub memory: Memory,
    /// One permit per inbound request that waits for its response's head.
    pub inbound_in_flight: Semaphore,
    /// The same for outbound requests.
    pub outbound_in_flight: Semaphore,
    /// One permit per connection that is served.
    pub inbound_connections: Arc<Semaphore>,
    pub outbound_connections: Arc<Semaphore>,
}

/// This thread's listening sockets; see [`crate::transport::listen::bind`].
#[derive(Debug)]
pub struct Listeners {
    pub inbound: StdListener,
    /// One for each address family.
    pub outbound: Vec<StdListener>,
}

/// Serves until the drain begins, then until no connection is left.
///
/// Connections are still accepted while others are open: an application that was told to stop
/// together with its proxy finishes what it has begun, and may have to ask others for that. What
/// the drain tells all connections (no more requests than one, no more streams) it tells the late
/// ones from their start.
///
/// Accepting starts with the first certificate: before it, no peer could be told from another.
/// Connections wait in the listeners' backlog meanwhile.
pub async fn run(parts: Parts) -> std::io::Result<()> {
    LocalSet::new().run_until(serve(parts)).await
}

async fn serve(parts: Parts) -> std::io::Result<()> {
    let worker = Rc::new(Worker {
        config: parts.config,
        discovery: parts.discovery,
        credentials: parts.credentials,
        families: parts.families,
        tasks: parts.shared.tasks.clone(),
        shared: parts.shared,
        scratch: Rc::default(),
        witness: parts.witness,
        drain: parts.drain,
    });
    let certified = worker.clone();
    tokio::select! {
        certified = certified.certified() => if !certified {
            // The control thread is gone, and the process is about to follow.
            return Ok(());
        },
        () = worker.drain.draining() => return Ok(()),
    }

    let inbound = Rc::new(Inbound::new(worker.clone()));
    let outbound = Rc::new(Outbound::new(worker.clone()));
    let mut accepting = JoinSet::new();
    let listener = Listener::new(parts.listeners.inbound, worker.config.inbound.accept)?;
    let places = worker.shared.inbound_connections.clone();
    let gate = Gate(Direction::Inbound, places);
    accepting.spawn_local(accept(listener, worker.clone(), gate, move |accepted| {
        inbound.clone().serve(accepted)
    }));
    for listener in parts.listeners.outbound {
        let listener = Listener::new(listener, worker.config.outbound.accept)?;
        let outbound = outbound.clone();
        let places = worker.shared.outbound_connections.clone();
        let gate = Gate(Direction::Outbound, places);
        accepting.spawn_local(accept(listener, worker.clone(), gate, move |accepted| {
            outbound.clone().serve(accepted)
        }));
    }
    while accepting.join_next().await.is_some() {}
    // What one of the loops accepted last.
    worker.tasks.wait().await;
    Ok(())
}

/// How many connections are served at a time.
struct Gate(Direction, Arc<Semaphore>);

impl Gate {
    /// A place for one more connection; the lack of one is counted.
    fn place(&self, worker: &Worker) -> Option<OwnedSemaphorePermit> {
        let reason = match self.1.clone().try_acquire_owned() {
            Ok(_place) if worker.shared.memory.is_short() => "memory",
            Ok(place) => return Some(place),
            Err(_none_left) => "connections",
        };
        let families = &worker.families;
        families.refused.connection(self.0, reason);
        tracing::debug!(
            direction = self.0.as_str(),
            reason,
            "Closed a connection too many"
        );
        None
    }
}

/// Accepts until the proxy drains and no connection is left; each connection is one task. A
/// connection too many is closed at once: it costs less than one that waits, and its client learns
/// of it.
async fn accept<F: Future<Output = ()> + 'static>(
    mut listener: Listener,
    worker: Rc<Worker>,
    gate: Gate,
    serve: impl Fn(AcceptedConnection) -> F,
) {
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => {
                if let Some(place) = gate.place(&worker) {
                    // An async block would hold the future twice: captured, and awaited.
                    let serving = serve(accepted).map(move |()| drop(place));
                    worker.tasks.spawn_local(serving);
                }
            }
            () = worker.drained() => return,
        }
    }
}

/// How long a connection whose protocol is not known yet may live on once the proxy drains: what
/// was sent before the drain began has arrived by then.
const DRAINING_UNDECIDED: Duration = Duration::from_secs(1);

/// Descriptors of a process where nobody has raised their limit.
const USUAL_DESCRIPTORS: usize = 1024;

/// How many connections each side may have with so many descriptors: three quarters. The rest is
/// for what leads on from them (HTTP needs few) and for the control plane: without a limit, clients
/// of one side could take all descriptors, and nothing could be dialled any more.
fn connections(descriptors: usize) -> usize {
    (descriptors / 4 * 3).max(1)
}

impl Shared {
    pub fn new(config: &Config) -> Self {
        let permits = |limit: usize| Semaphore::new(limit.min(Semaphore::MAX_PERMITS));
        let possible = connections(descriptors::limit().unwrap_or(USUAL_DESCRIPTORS));
        let places = |limit: Option<usize>| Arc::new(permits(limit.unwrap_or(possible)));
        Self {
            tasks: TaskTracker::new(),
            rate_limits: RateLimits::default(),
            memory: Memory::new(config.memory),
            inbound_in_flight: permits(config.inbound.max_in_flight),
            outbound_in_flight: permits(config.outbound.max_in_flight),
            inbound_connections: places(config.inbound.max_connections),
            outbound_connections: places(config.outbound.max_connections),
        }
    }
}

impl Worker {
    /// The certificate in force. Present once accepting has begun.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Waits until the drain has begun and no connection is left.
    async fn drained(&self) {
        self.drain.draining().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits for the first certificate. False when none will come.
    async fn certified(&self) -> bool {
        let mut credentials = self.credentials.clone();
        credentials.wait_for(Option::is_some).await.is_ok()
    }

    /// Finishes `deciding`, the detection of a connection's protocol, unless the proxy drains and
    /// the client remains silent.
    pub async fn unless_draining<T>(
        &self,
        deciding: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let drained = async {
            self.drain.draining().await;
            tokio::time::sleep(DRAINING_UNDECIDED).await;
        };
        tokio::select! {
            biased;
            decided = deciding => Some(decided),
            () = drained => None,
        }
    }

    /// Whether `ip` is one of this pod's own addresses.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.config.inbound.ips.contains(&ip.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_one_side_cannot_take_all_descriptors() {
        assert_eq!(connections(4096), 3072);
    }
}
