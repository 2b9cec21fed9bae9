//! [`Peers`]: the client and the server of a script.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::{Link, Signals, Socket};
use crate::observation::Observed;
use crate::script::{Protocol, Script, Server, Side};

/// How long the peers may do nothing before the run ends: longer than the proxies detect a protocol
/// (10 s) and connect, and less than their time limits for slow peers (30 s and more), which would
/// end connections that a script leaves open.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often that is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The signal that the server has accepted a connection. No script can name it.
pub(crate) const ACCEPTED: &str = "server accepts";

/// Where client and server have their sockets.
pub(crate) trait Hosts: Clone + 'static {
    type Listener;

    /// Opens a connection from the client to the server.
    async fn connect(&self) -> io::Result<Socket>;

    async fn accept(listener: &Self::Listener) -> io::Result<Socket>;
}

/// The server's connections, in the order of their acceptance.
type Servers = Rc<RefCell<Vec<Rc<Link>>>>;

/// The connections of a run.
pub(crate) struct Peers {
    signals: Signals,
    clients: Vec<Rc<Link>>,
    servers: Servers,
    accepting: Vec<AbortHandle>,
}

impl Peers {
    /// Starts the client of a script, and the server on its listeners.
    pub(crate) fn start<H: Hosts>(script: &Script, hosts: H, listeners: Vec<H::Listener>) -> Self {
        let signals = Signals::new();
        let mut clients = Vec::new();
        for (index, steps) in script.clients.iter().enumerate() {
            let signals = signals.clone();
            let link = Link::new(Side::Client, index + 1, script.protocol, signals);
            let link = Rc::new(link);
            let (client, hosts) = (Rc::clone(&link), hosts.clone());
            spawn_local(super::run_client(client, hosts, steps.clone()));
            clients.push(link);
        }
        let (servers, requests) = (Rc::default(), Rc::default());
        let server = Rc::new(script.server.clone());
        let accepting = listeners.into_iter().map(|listener| {
            let accepting = Accepting {
                protocol: script.protocol,
                server: Rc::clone(&server),
                signals: signals.clone(),
                servers: Rc::clone(&servers),
                requests: Rc::clone(&requests),
            };
            spawn_local(accepting.accept_from::<H>(listener)).abort_handle()
        });
        let accepting = accepting.collect();
        Self {
            signals,
            clients,
            servers,
            accepting,
        }
    }

    pub(crate) fn signals(&self) -> Signals {
        self.signals.clone()
    }

    /// Returns a function that counts the bytes that servers have received.
    pub(crate) fn received(&self) -> impl Fn() -> usize + use<> {
        let servers = Rc::clone(&self.servers);
        move || servers.borrow().iter().map(|link| link.received()).sum()
    }

    /// Waits until nothing has happened for [`PATIENCE`] and no peer pauses, at most for `longest`.
    pub(crate) async fn settle(&self, longest: Duration) {
        let begin = Instant::now();
        let (mut progress, mut since) = (self.signals.progress(), begin);
        loop {
            sleep(CHECK_INTERVAL).await;
            let now = Instant::now();
            if self.signals.progress() != progress {
                (progress, since) = (self.signals.progress(), now);
            }
            let servers = self.servers.borrow();
            let mut links = self.clients.iter().chain(&*servers);
            let is_settled = now - since >= PATIENCE && !links.any(|link| link.is_pausing());
            if is_settled || now - begin >= longest {
                return;
            }
        }
    }

    /// Everything that has been seen. Closes all connections.
    pub(crate) fn observe(self) -> Observed {
        let clients = self.clients.iter().map(Link::into_observation).collect();
        let servers = self.servers.borrow();
        let servers = servers.iter().map(Link::into_observation).collect();
        self.accepting.iter().for_each(AbortHandle::abort);
        Observed { clients, servers }
    }
}

/// Accepts the connections of one listener.
struct Accepting {
    protocol: Protocol,
    server: Rc<Server>,
    signals: Signals,
    servers: Servers,
    /// The requests that the server has begun to respond to, on all connections.
    requests: Rc<Cell<usize>>,
}

impl Accepting {
    async fn accept_from<H: Hosts>(self, listener: H::Listener) {
        // Fails only for want of memory or descriptors.
        while let Ok(socket) = H::accept(&listener).await {
            let n = self.servers.borrow().len();
            let signals = self.signals.clone();
            let link = Link::new(Side::Server, n + 1, self.protocol, signals);
            let link = Rc::new(link);
            link.open(socket);
            self.signals.set(ACCEPTED);
            self.servers.borrow_mut().push(Rc::clone(&link));
            let (server, requests) = (Rc::clone(&self.server), Rc::clone(&self.requests));
            spawn_local(super::run_server(link, server, n, requests));
        }
    }
}
