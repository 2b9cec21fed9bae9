//! The way to the application: one HTTP client per address it listens on, and plain connections for
//! everything else.
//!
//! A native sidecar is not told that its pod ends. The application is: it closes its listener and
//! the connections on which nothing runs. Its clients have connections to the proxy instead, so the
//! proxy does it for them: [`AppPort`] finds out that the application no longer listens, and drains
//! the connections of the clients of that port (docs/adr/0034).

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::drain::{Part, Watch};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::Config;
use crate::error::DialError;
use crate::http::Protocol;
use crate::http::client::{Client, Dial, Params, Spare, WatchServer};
use crate::idle::IdleCache;
use crate::telemetry::tcp::Transport;
use crate::transport::Io;
use crate::transport::connect::{self, ConnectError, ConnectOptions};
use crate::worker::Worker;

/// The HTTP clients of one data thread.
pub(super) struct Apps {
    config: Arc<Config>,
    transport: Arc<Transport>,
    params: Params,
    clients: IdleCache<SocketAddr, Client<AppPort>>,
    drain: Watch,
}

/// One address of the application: connects to it, and drains its clients' connections when it no
/// longer listens.
pub(super) struct AppPort {
    addr: SocketAddr,
    options: ConnectOptions,
    transport: Arc<Transport>,
    drain: Watch,
    /// The clients' connections since the application was last found gone.
    clients: RefCell<Part>,
    /// How many connections of clients there are.
    open: Cell<usize>,
    /// The last connection to it was accepted.
    is_listening: Cell<bool>,
    check: Cell<Check>,
    checked: Notify,
    /// Something has happened while a check was running.
    check_again: Cell<bool>,
    next_check: Cell<Instant>,
}

/// Whether it is being found out that the application still listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    None,
    /// It will be when [`CHECK_INTERVAL`] is over.
    Due,
    Running,
}

/// A client's connection to one address of the application.
pub(super) struct AppConnection {
    port: Rc<AppPort>,
    drain: Watch,
}

/// Applications close connections for reasons of their own, some after each that was idle for a
/// second. Each is answered with a connection that finds out what it means, and that the next
/// request uses; not with more of them than this.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a response is held back until it is known whether its client may go on with its
/// connection. The kernel answers in microseconds, unless the application's backlog is full.
const CHECK_PATIENCE: Duration = Duration::from_millis(100);

impl Apps {
    pub(super) fn new(worker: &Worker, transport: Arc<Transport>) -> Self {
        let inbound = &worker.config.inbound;
        Self {
            config: worker.config.clone(),
            transport,
            params: Params::new(&inbound.http1_pool, inbound.http2_client),
            clients: IdleCache::new(worker.config.discovery.inbound_idle),
            drain: worker.drain.clone(),
        }
    }

    /// The client of one address. It lives while connections use it and is kept a while for the
    /// next.
    pub(super) fn client(&self, addr: SocketAddr) -> Rc<Client<AppPort>> {
        self.clients.find_or(addr, |addr| {
            let port = AppPort {
                addr: *addr,
                options: self.options(),
                transport: self.transport.clone(),
                clients: RefCell::new(self.drain.part()),
                drain: self.drain.clone(),
                open: Cell::new(0),
                is_listening: Cell::new(false),
                check: Cell::new(Check::None),
                checked: Notify::new(),
                check_again: Cell::new(false),
                next_check: Cell::new(Instant::now()),
            };
            Client::watched(port, &self.params)
        })
    }

    /// A connection for bytes that nobody interprets.
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
    /// Counts a client's connection from now to its end.
    pub(super) fn connection(self: &Rc<Self>) -> AppConnection {
        self.open.set(self.open.get() + 1);
        AppConnection {
            drain: self.clients.borrow().watch(),
            port: self.clone(),
        }
    }

    /// Whether it is being found out at this moment that the application still listens.
    pub(super) fn is_checking(&self) -> bool {
        self.check.get() == Check::Running
    }

    /// Waits until that is known.
    pub(super) async fn checked(&self) {
        // Nothing else is known after that time than before.
        let _elapsed = timeout(CHECK_PATIENCE, self.checked.notified()).await;
    }

    async fn connect(&self) -> Result<Io, ConnectError> {
        match connect::dial(self.addr, &self.options).await {
            Ok(io) => {
                self.is_listening.set(true);
                Ok(io.measured(self.transport.open()))
            }
            Err(error) => {
                if error.is_refused() {
                    self.drain_clients();
                }
                Err(error)
            }
        }
    }

    /// Tells all connections of clients to this address to finish: those of HTTP/1 are closed when
    /// they are idle, and announce it with the next response otherwise; those of HTTP/2 take no
    /// more streams. Connections that are accepted from now on are not meant.
    fn drain_clients(&self) {
        if self.is_listening.replace(false) && self.open.get() > 0 {
            tracing::info!(
                addr = %self.addr,
                connections = self.open.get(),
                "The application no longer listens; the connections of its clients are drained"
            );
        }
        let drained = self.clients.replace(self.drain.part());
        drained.drain();
    }

    /// Finds out whether the application still listens, as often as there is reason to.
    async fn find_out(self: Rc<Self>, spare: Option<Spare>) {
        loop {
            if self.check.get() == Check::Due {
                sleep_until(self.next_check.get()).await;
                self.check.set(Check::Running);
            }
            self.check_again.set(false);
            let connected = self.connect().await;
            self.next_check.set(Instant::now() + CHECK_INTERVAL);
            self.check.set(Check::Due);
            self.checked.notify_waiters();
            if let (Ok(io), Some(spare)) = (connected, &spare)
                && self.open.get() > 0
            {
                spare.put(io);
            }
            if !self.check_again.get() {
                break;
            }
        }
        self.check.set(Check::None);
    }
}

impl Dial for AppPort {
    /// Applications are spoken to in the protocol of the request, without TLS.
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        Ok(self.connect().await?)
    }
}

impl WatchServer for AppPort {
    /// A listener that refuses is gone; one that accepts belongs to an application that has closed
    /// a connection for another reason.
    fn connection_closed(self: Rc<Self>, spare: Option<Spare>) {
        if self.open.get() == 0 {
            return;
        }
        if self.check.get() != Check::None {
            self.check_again.set(true);
            return;
        }
        self.check
            .set(match self.next_check.get() > Instant::now() {
                true => Check::Due,
                false => Check::Running,
            });
        tokio::task::spawn_local(self.find_out(spare));
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
