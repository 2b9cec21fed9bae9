//! Connections to the application: one HTTP client per address it listens on, and plain connections
//! for opaque traffic.
//!
//! The kubelet signals the end of a pod to the application before it signals a native sidecar. The
//! application closes its listener and its idle connections, but its clients are connected to the
//! proxy. [`AppPort`] therefore drains the connections of that port's clients when the policy tells
//! that the pod is being deleted (docs/adr/0146), and when it detects that the application no
//! longer listens (docs/adr/0034).

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::drain::{Part, Watch};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::config::Config;
use crate::context::ProxyContext;
use crate::discovery::CurrentPolicy;
use crate::error::DialError;
use crate::http::Protocol;
use crate::http::client::{Client, ClientConfig, Dial, PoolHandle, ServerWatcher};
use crate::inbound::MAX_ENFORCERS;
use crate::limits::idle::IdleCache;
use crate::telemetry::tcp::TransportMetrics;
use crate::transport::Io;
use crate::transport::connect::{self, ConnectError, ConnectOptions};
use crate::watch;

/// The HTTP clients of one data thread, by address of the application.
pub(super) struct Apps {
    config: Arc<Config>,
    transport: Arc<TransportMetrics>,
    params: ClientConfig,
    clients: IdleCache<SocketAddr, Client<AppPort>>,
    drain: Watch,
}

/// One address of the application. Connects to it, and drains its clients' connections when it no
/// longer listens.
pub(super) struct AppPort {
    addr: SocketAddr,
    options: ConnectOptions,
    transport: Arc<TransportMetrics>,
    drain: Watch,
    /// Drains the clients' connections that were accepted since the last drain.
    clients: RefCell<Part>,
    /// Drains them while the pod is being deleted.
    termination: RefCell<Option<FollowedPolicy>>,
    /// The number of open client connections.
    open: Cell<usize>,
    /// Whether the application accepted the last connection.
    is_listening: Cell<bool>,
    probe: Cell<ProbeState>,
    probed: Notify,
    /// The application has closed another connection while a probe was running.
    probe_again: Cell<bool>,
    next_probe: Cell<Instant>,
}

/// The policies of the port that tell whether the pod is being deleted, and the task that drains.
struct FollowedPolicy {
    policies: watch::Receiver<CurrentPolicy>,
    _task: AbortOnDropHandle<()>,
}

/// State of the probe that checks whether the application still listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeState {
    Idle,
    /// The probe runs when [`PROBE_INTERVAL`] has elapsed.
    Scheduled,
    Running,
}

/// A client's connection to one address of the application.
pub(super) struct AppConnection {
    port: Rc<AppPort>,
    drain: Watch,
}

/// Minimum time between two probes. Applications also close connections for other reasons, such as
/// an idle timeout. The probe's connection is kept for the next request.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two drains while the pod is being deleted. A client that reconnects before its node
/// has removed the pod from the Service reaches the same pod, and is drained with the next one.
const TERMINATION_INTERVAL: Duration = Duration::from_secs(1);

/// How long a response is delayed for a running probe, whose result decides whether the client may
/// keep its connection. The kernel accepts or refuses in microseconds, unless the application's
/// backlog is full.
const PROBE_WAIT: Duration = Duration::from_millis(100);

/// How long the error of a request is delayed to find out whether the application has stopped: for
/// a probe that runs, which may have been accepted before, and the next one.
const STOP_WAIT: Duration = Duration::from_millis(300);

impl Apps {
    pub(super) fn new(context: &ProxyContext, transport: Arc<TransportMetrics>) -> Self {
        let inbound = &context.config.inbound;
        Self {
            config: context.config.clone(),
            transport,
            params: ClientConfig::new(&inbound.http1_pool, inbound.http2_client),
            clients: IdleCache::with_limit(context.config.discovery.inbound_idle, MAX_ENFORCERS),
            drain: context.drain.clone(),
        }
    }

    /// Returns the client of one address. It is kept for the idle time after its last connection,
    /// unless [`MAX_ENFORCERS`] later ones replace it.
    pub(super) fn client(&self, addr: SocketAddr) -> Rc<Client<AppPort>> {
        self.clients.get_or_insert_with(addr, |addr| {
            let port = AppPort {
                addr: *addr,
                options: self.options(),
                transport: self.transport.clone(),
                clients: RefCell::new(self.drain.part()),
                termination: RefCell::new(None),
                drain: self.drain.clone(),
                open: Cell::new(0),
                is_listening: Cell::new(false),
                probe: Cell::new(ProbeState::Idle),
                probed: Notify::new(),
                probe_again: Cell::new(false),
                next_probe: Cell::new(Instant::now()),
            };
            Client::with_watcher(port, &self.params)
        })
    }

    /// The HTTP clients, for evictions.
    pub(super) fn clients(&self) -> &IdleCache<SocketAddr, Client<AppPort>> {
        &self.clients
    }

    /// Opens a connection for opaque bytes.
    pub(super) async fn connect(&self, addr: SocketAddr) -> Result<Io, ConnectError> {
        let io = connect::dial(addr, &self.options()).await?;
        Ok(io.measured(self.transport.open()))
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions {
            timeout: self.config.inbound.connect_timeout,
            socket: self.config.inbound.connect,
        }
    }
}

impl AppPort {
    /// Counts a client's connection until the result is dropped.
    pub(super) fn connection(self: &Rc<Self>) -> AppConnection {
        self.open.set(self.open.get() + 1);
        AppConnection {
            drain: self.clients.borrow().watch(),
            port: self.clone(),
        }
    }

    /// Drains the clients' connections, present and later ones, once these policies of the port
    /// tell that the pod is being deleted.
    pub(super) fn follow_termination(self: &Rc<Self>, policies: watch::Receiver<CurrentPolicy>) {
        let mut followed = self.termination.borrow_mut();
        let is_followed = followed
            .as_ref()
            .is_some_and(|followed| followed.policies.same_channel(&policies));
        if !is_followed {
            let task = drain_while_terminating(Rc::downgrade(self), policies.clone());
            *followed = Some(FollowedPolicy {
                policies,
                _task: AbortOnDropHandle::new(tokio::task::spawn_local(task)),
            });
        }
    }

    /// Whether a probe is running.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.get() == ProbeState::Running
    }

    /// Waits until the running probe completes, for at most [`PROBE_WAIT`].
    pub(super) async fn probed(&self) {
        let _elapsed = timeout(PROBE_WAIT, self.probed.notified()).await;
    }

    async fn connect(&self) -> Result<Io, ConnectError> {
        match connect::dial(self.addr, &self.options).await {
            Ok(io) => {
                self.is_listening.set(true);
                Ok(io.measured(self.transport.open()))
            }
            Err(error) => {
                if error.is_refused() {
                    if self.is_listening.replace(false) {
                        self.log_drain("the application no longer listens");
                    }
                    self.drain_clients();
                }
                Err(error)
            }
        }
    }

    /// Drains all client connections to this address: idle HTTP/1 connections are closed, others
    /// announce the close with the next response; HTTP/2 connections accept no more streams.
    /// Connections accepted later are not drained.
    fn drain_clients(&self) {
        let drained = self.clients.replace(self.drain.part());
        drained.drain();
    }

    fn log_drain(&self, reason: &str) {
        if self.open.get() > 0 {
            tracing::info!(
                addr = %self.addr,
                connections = self.open.get(),
                reason,
                "Draining client connections"
            );
        }
    }

    /// Probes the application's listener, and again for connections that it closed meanwhile.
    async fn probe_listener(self: Rc<Self>, spare: Option<PoolHandle>) {
        loop {
            if self.probe.get() == ProbeState::Scheduled {
                sleep_until(self.next_probe.get()).await;
                self.probe.set(ProbeState::Running);
            }
            self.probe_again.set(false);
            let connected = self.connect().await;
            self.next_probe.set(Instant::now() + PROBE_INTERVAL);
            self.probe.set(ProbeState::Scheduled);
            self.probed.notify_waiters();
            if let (Ok(io), Some(spare)) = (connected, &spare)
                && self.open.get() > 0
            {
                spare.put(io);
            }
            if !self.probe_again.get() {
                break;
            }
        }
        self.probe.set(ProbeState::Idle);
    }
}

/// Drains the clients' connections of `port`, again and again, while the policy tells that the pod
/// is being deleted. Ends with the policy's updates.
async fn drain_while_terminating(
    port: Weak<AppPort>,
    mut policies: watch::Receiver<CurrentPolicy>,
) {
    let is_terminating = |current: &CurrentPolicy| current.policy.is_terminating;
    while policies.wait_for(is_terminating).await.is_ok() {
        let Some(port) = port.upgrade() else {
            return;
        };
        port.log_drain("the pod is being deleted");
        port.drain_clients();
        drop(port);
        sleep(TERMINATION_INTERVAL).await;
    }
}

impl Dial for AppPort {
    /// Connects without TLS; the request determines the protocol.
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        Ok(self.connect().await?)
    }

    /// Waits for the probes that follow the end of a connection, for at most [`STOP_WAIT`].
    async fn has_stopped(&self) -> bool {
        let probes = async {
            while self.is_listening.get() && self.probe.get() != ProbeState::Idle {
                self.probed.notified().await;
            }
        };
        let _elapsed = timeout(STOP_WAIT, probes).await;
        !self.is_listening.get()
    }
}

impl ServerWatcher for AppPort {
    /// Probes the listener: a refused connection means that the application has closed it.
    fn connection_closed(self: Rc<Self>, spare: Option<PoolHandle>) {
        if self.open.get() == 0 {
            return;
        }
        if self.probe.get() != ProbeState::Idle {
            self.probe_again.set(true);
            return;
        }
        let is_early = self.next_probe.get() > Instant::now();
        self.probe.set(if is_early {
            ProbeState::Scheduled
        } else {
            ProbeState::Running
        });
        tokio::task::spawn_local(self.probe_listener(spare));
    }

    fn keeps_last_idle(&self) -> bool {
        self.open.get() > 0
    }
}

impl AppConnection {
    pub(super) fn drain(&self) -> Watch {
        self.drain.clone()
    }
}

impl Drop for AppConnection {
    fn drop(&mut self) {
        self.port.open.set(self.port.open.get() - 1);
    }
}
