//! A data thread: a current-thread runtime that accepts, serves and opens its own connections.
//!
//! Data threads share snapshots (discovery, credentials), counters and the drain only. Both
//! directions are built from the thread's [`ProxyContext`].

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_planted::Bug;
use mesh_runtime::drain;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::config::Config;
use crate::context::{ProcessState, ProxyContext};
use crate::discovery::Discovery;
use crate::inbound::Inbound;
use crate::limits::connections::ConnectionLimit;
use crate::limits::memory;
use crate::outbound::Outbound;
use crate::redirection::ProbeListener;
use crate::telemetry::Families;
use crate::tls::CredentialsRx;
use crate::transport::listen::{AcceptedConnection, Listener, ListeningSocket};

/// The parts of a data thread. They move to the thread, where they become a [`ProxyContext`].
#[derive(Debug)]
pub(crate) struct WorkerParts {
    pub(crate) config: Arc<Config>,
    pub(crate) discovery: Discovery,
    pub(crate) credentials: CredentialsRx,
    pub(crate) families: Arc<Families>,
    pub(crate) shared: Arc<ProcessState>,
    pub(crate) probe_listener: Option<ProbeListener>,
    pub(crate) drain: drain::Watch,
    pub(crate) listeners: Listeners,
}

/// The listening sockets of a data thread; see [`crate::transport::listen::bind`].
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) inbound: ListeningSocket,
    /// One for each address family.
    pub(crate) outbound: Vec<ListeningSocket>,
}

/// Serves until the drain starts, and then until no connection is left.
///
/// While connections are open, new ones are accepted: an application that is stopped together with
/// its proxy finishes its work, and may need other services for it. New connections drain from
/// their start: one request, or no further streams.
///
/// Accepting starts with the first certificate, without which peers cannot be authenticated. Until
/// then, connections wait in the listeners' backlog.
pub(crate) async fn run(parts: WorkerParts) -> std::io::Result<()> {
    LocalSet::new().run_until(serve(parts)).await
}

async fn serve(parts: WorkerParts) -> std::io::Result<()> {
    let context = Rc::new(ProxyContext {
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
        biased;
        is_certified = context.wait_for_certificate() => if !is_certified {
            // The control thread has ended, and the process is exiting.
            return Ok(());
        },
        () = context.drain.draining() => return Ok(()),
    }

    let outbound = Rc::new(Outbound::new(context.clone()));
    let inbound = Rc::new(Inbound::new(context.clone()).with_gateway(&outbound));
    let mut accepting = JoinSet::new();
    let evicting = tokio::task::spawn_local(inbound.clone().evict_idle());
    let _evicting = AbortOnDropHandle::new(evicting);
    let evicting_outbound = tokio::task::spawn_local(outbound.clone().evict_idle());
    let _evicting_outbound = AbortOnDropHandle::new(evicting_outbound);
    let relief = Rc::new(Relief::new(inbound.clone(), outbound.clone()));
    let listener = Listener::new(parts.listeners.inbound, context.config.inbound.accept)?;
    accepting.spawn_local(accept(
        listener,
        context.clone(),
        context.shared.limits.inbound_connections.clone(),
        relief.clone(),
        move |accepted| inbound.clone().serve(accepted),
    ));
    for listener in parts.listeners.outbound {
        let listener = Listener::new(listener, context.config.outbound.accept)?;
        let outbound = outbound.clone();
        accepting.spawn_local(accept(
            listener,
            context.clone(),
            context.shared.limits.outbound_connections.clone(),
            relief.clone(),
            move |accepted| outbound.clone().serve(accepted),
        ));
    }
    while accepting.join_next().await.is_some() {}
    // A loop may have accepted a connection after the others returned.
    context.tasks.wait().await;
    Ok(())
}

/// Frees memory that no connection uses, and returns it to the kernel, while connections are
/// refused for lack of it: without a connection nothing would, and the refusals would not end.
pub(crate) struct Relief {
    inbound: Rc<Inbound>,
    outbound: Rc<Outbound>,
    last: Cell<Option<Instant>>,
}

/// The least time between two evictions, so that a flood of connections does not pay for them.
const RELIEF_INTERVAL: Duration = Duration::from_secs(1);

impl Relief {
    pub(crate) fn new(inbound: Rc<Inbound>, outbound: Rc<Outbound>) -> Self {
        Self {
            inbound,
            outbound,
            last: Cell::new(None),
        }
    }

    pub(crate) fn evict_unused(&self) {
        let now = Instant::now();
        if self
            .last
            .get()
            .is_none_or(|last| now - last >= RELIEF_INTERVAL)
        {
            self.last.set(Some(now));
            self.inbound.evict_unused();
            self.outbound.evict_unused();
            memory::return_freed();
        }
    }
}

/// Accepts until the proxy drains and no connection is left. Each connection is a task. A
/// connection above the limit is reset immediately, which costs less than one that waits and
/// informs the client.
pub(crate) async fn accept<F: Future<Output = ()> + 'static>(
    mut listener: Listener,
    context: Rc<ProxyContext>,
    limit: ConnectionLimit,
    relief: Rc<Relief>,
    serve: impl Fn(AcceptedConnection) -> F,
) {
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => {
                let (memory, refused) = (&context.shared.limits.memory, &context.families.refused);
                if let Some(permit) = limit.try_acquire(memory, refused, || relief.evict_unused()) {
                    // An async block would contain the future twice: captured and awaited.
                    let serving = serve(accepted).map(move |()| {
                        if Bug::ConnectionPermitLeak.is_planted() {
                            permit.forget();
                        }
                    });
                    context.tasks.spawn_local(serving);
                }
            }
            () = context.wait_until_drained() => return,
        }
    }
}
