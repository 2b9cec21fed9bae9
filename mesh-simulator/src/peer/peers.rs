//! [`Peers`]: the client and the server of a script.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::{Link, Signals, Socket};
use crate::observation::Observed;
use crate::script::{Script, Side};

/// How long the peers may do nothing before the run ends: longer than the proxies detect a protocol
/// (10 s) and connect, and less than their time limits for slow peers (30 s and more), which would
/// end connections that a script leaves open.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often that is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

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
        let signals = Signals::default();
        let mut clients = Vec::new();
        for steps in &script.clients {
            let link = Rc::new(Link::new(Side::Client, script.protocol, signals.clone()));
            let (client, hosts) = (Rc::clone(&link), hosts.clone());
            spawn_local(super::run_client(client, hosts, steps.clone()));
            clients.push(link);
        }
        let servers = Rc::default();
        let accepting = listeners.into_iter().map(|listener| {
            let (script, servers) = (script.clone(), Rc::clone(&servers));
            spawn_local(accept::<H>(listener, script, signals.clone(), servers)).abort_handle()
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

async fn accept<H: Hosts>(
    listener: H::Listener,
    script: Script,
    signals: Signals,
    servers: Servers,
) {
    // Fails only for want of memory or descriptors.
    while let Ok(socket) = H::accept(&listener).await {
        let link = Rc::new(Link::new(Side::Server, script.protocol, signals.clone()));
        link.open(socket);
        let steps = script.server_steps(servers.borrow().len()).to_vec();
        servers.borrow_mut().push(Rc::clone(&link));
        spawn_local(async move { super::play(&link, &steps, 0).await });
    }
}
