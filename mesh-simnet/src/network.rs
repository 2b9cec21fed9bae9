//! [`Network`]: hosts, listeners, routes and the order of events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::errno::Errno;
use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::conditions::Conditions;
use crate::connection::{Connection, Delivered, Side};
use crate::trace::{Event, EventKind, Trace};
use crate::usage;

/// The port of the first connection that a host opens.
const FIRST_SOURCE_PORT: u16 = 32_768;

/// Who opens a connection: the redirection of a host applies to its application alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The application of a pod, and everything without redirection.
    Application,
    /// The proxy of a pod.
    Proxy,
}

/// A network. Clones are the same network.
///
/// Nothing moves on it without [`Network::run`].
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

/// Where the connections of a host's application, and the ones from other hosts, really go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Redirection {
    /// The listener for connections that the application opens to other hosts.
    pub outbound: Option<SocketAddr>,
    /// The listener for connections of other hosts, to any port but its own.
    pub inbound: Option<SocketAddr>,
}

/// What happens to connections between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing arrives any more, and no peer is told.
    Vanished,
    /// New connections fail with this error.
    Unreachable(Errno),
}

struct State {
    start: Instant,
    random: SmallRng,
    conditions: Conditions,
    trace: Trace,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    next_port: u16,
    listeners: BTreeMap<SocketAddr, Backlog>,
    redirections: BTreeMap<IpAddr, Redirection>,
    faults: BTreeMap<IpAddr, Fault>,
    /// By time; the number keeps events of the same time in the order of their creation.
    events: BTreeMap<(Instant, u64), Action>,
    next_event: u64,
    /// The directions that have an event already.
    scheduled: BTreeSet<(u64, Side)>,
}

#[derive(Default)]
struct Backlog {
    ready: VecDeque<(u64, SocketAddr)>,
    acceptor: Option<Waker>,
}

enum Action {
    Deliver(u64, Side),
    Establish(Box<Handshake>),
    GiveUp(u64, Side),
    /// No host has answered the handshake.
    TimeOut(u64, oneshot::Sender<io::Result<()>>),
}

struct Handshake {
    connection: u64,
    /// The address that the opener has asked for.
    to: SocketAddr,
    listener: SocketAddr,
    answer: oneshot::Sender<io::Result<()>>,
}

impl Network {
    /// Creates a network without hosts. Needs a runtime with a paused clock.
    pub fn new(seed: u64, conditions: Conditions, keeps_events: bool) -> Self {
        let state = State {
            start: Instant::now(),
            random: SmallRng::seed_from_u64(seed),
            conditions,
            trace: Trace::new(keeps_events),
            connections: BTreeMap::new(),
            next_connection: 0,
            next_port: FIRST_SOURCE_PORT,
            listeners: BTreeMap::new(),
            redirections: BTreeMap::new(),
            faults: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            scheduled: BTreeSet::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::default(),
        }
    }

    /// Carries all bytes and events, indefinitely.
    pub async fn run(&self) {
        loop {
            let next = self.state.lock().next_time();
            match next {
                Some(at) if at <= Instant::now() => {
                    self.step();
                    tokio::task::yield_now().await;
                }
                Some(at) => tokio::select! {
                    biased;
                    () = self.changed.notified() => {}
                    () = sleep_until(at) => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// Carries everything that is due, without a runtime.
    pub fn run_due(&self) {
        while self
            .state
            .lock()
            .next_time()
            .is_some_and(|at| at <= Instant::now())
        {
            self.step();
        }
    }

    fn step(&self) {
        let woken = self.state.lock().step();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Sets where the connections of a host go.
    pub fn redirect(&self, host: IpAddr, redirection: Redirection) {
        self.state.lock().redirections.insert(host, redirection);
    }

    /// Plants a fault at a host, or removes it.
    pub fn set_fault(&self, host: IpAddr, fault: Option<Fault>) {
        let mut state = self.state.lock();
        match fault {
            Some(fault) => state.faults.insert(host, fault),
            None => state.faults.remove(&host),
        };
        let ids: Vec<u64> = state.connections.keys().copied().collect();
        for id in ids {
            if hosts_are_cut(&state.faults, state.connections[&id].hosts()) {
                state.schedule_giving_up(id);
            } else {
                state.schedule(id);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Reads the trace.
    pub fn trace<T>(&self, read: impl FnOnce(&Trace) -> T) -> T {
        read(&self.state.lock().trace)
    }

    /// The number of connections that an application holds, or that carry something. Connections of
    /// hosts that have vanished do not count.
    pub fn open_connections(&self) -> usize {
        let state = self.state.lock();
        let connections = state.connections.values();
        connections
            .filter(|connection| !hosts_are_cut(&state.faults, connection.hosts()))
            .count()
    }

    /// Fails if the address is in use.
    pub(crate) fn listen(&self, addr: SocketAddr) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.listeners.contains_key(&addr) {
            return Err(Errno::EADDRINUSE.into());
        }
        state.listeners.insert(addr, Backlog::default());
        Ok(())
    }

    /// Takes the next connection of a listener: its number, the address of the opener, and the
    /// address that it has asked for.
    pub(crate) fn poll_accept(
        &self,
        listener: SocketAddr,
        cx: &Context<'_>,
    ) -> Poll<(u64, SocketAddr, SocketAddr)> {
        let _scope = usage::call();
        let mut state = self.state.lock();
        let Some(backlog) = state.listeners.get_mut(&listener) else {
            return Poll::Pending;
        };
        let Some((id, original_dst)) = backlog.ready.pop_front() else {
            backlog.acceptor = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let peer = state.connections[&id].local_addr(Side::Opener);
        Poll::Ready((id, peer, original_dst))
    }

    /// Closes a listener. Returns the connections that it has not accepted.
    pub(crate) fn close_listener(&self, listener: SocketAddr) -> Vec<u64> {
        let backlog = self.state.lock().listeners.remove(&listener);
        let ready = backlog.into_iter().flat_map(|backlog| backlog.ready);
        ready.map(|(id, _)| id).collect()
    }

    /// Sends the first packet of a connection. `answer` receives whether it was accepted.
    pub(crate) fn start_connecting(
        &self,
        from: (IpAddr, Role),
        to: SocketAddr,
        answer: oneshot::Sender<io::Result<()>>,
    ) -> io::Result<u64> {
        let _scope = usage::call();
        let id = self.state.lock().connect(from, to, answer)?;
        self.changed.notify_one();
        Ok(id)
    }

    /// Calls `change` with a connection, and schedules the consequences.
    pub(crate) fn with<T>(
        &self,
        id: u64,
        change: impl FnOnce(&mut Connection, &mut SmallRng) -> T,
    ) -> T {
        let _scope = usage::call();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(connection) = state.connections.get_mut(&id) else {
            unreachable!("a connection stays until both of its streams are dropped");
        };
        let result = change(connection, &mut state.random);
        let woken = connection.take_woken();
        state.schedule(id);
        drop(guard);
        woken.into_iter().for_each(Waker::wake);
        self.changed.notify_one();
        result
    }
}

impl State {
    fn next_time(&self) -> Option<Instant> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    fn push(&mut self, after: Duration, action: Action) {
        let number = self.next_event;
        self.next_event += 1;
        let at = Instant::now() + after;
        self.events.insert((at, number), action);
    }

    fn record(&mut self, id: u64, from: Side, kind: EventKind) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        self.trace.record(Event {
            at: self.start.elapsed(),
            connection: id,
            from: connection.local_addr(from),
            to: connection.local_addr(from.peer()),
            kind,
        });
    }

    fn connect(
        &mut self,
        (own, role): (IpAddr, Role),
        to: SocketAddr,
        answer: oneshot::Sender<io::Result<()>>,
    ) -> io::Result<u64> {
        let is_loopback = to.ip().is_loopback();
        let host = if is_loopback { own } else { to.ip() };
        if let Some(Fault::Unreachable(errno)) = self.faults.get(&host) {
            return Err((*errno).into());
        }
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_SOURCE_PORT);
        let from = SocketAddr::new(own, port);
        let listener = self.route(own, role, SocketAddr::new(host, to.port()));
        let id = self.next_connection;
        self.next_connection += 1;
        let hosts = [own, listener.ip()];
        let connection = Connection::new([from, to], hosts, &self.conditions);
        self.connections.insert(id, connection);
        self.record(id, Side::Opener, EventKind::Connect);
        let delay = Duration::from_millis(self.conditions.delay(&mut self.random));
        let handshake = Handshake {
            connection: id,
            to,
            listener,
            answer,
        };
        self.push(delay, Action::Establish(Box::new(handshake)));
        Ok(id)
    }

    /// The listener of a connection from a host to `to`.
    fn route(&self, own: IpAddr, role: Role, to: SocketAddr) -> SocketAddr {
        let redirection = |host| self.redirections.get(&host).copied().unwrap_or_default();
        if to.ip() == own {
            return to;
        }
        if role == Role::Application
            && let Some(outbound) = redirection(own).outbound
        {
            return outbound;
        }
        redirection(to.ip()).inbound.unwrap_or(to)
    }

    fn step(&mut self) -> Vec<Waker> {
        let Some((_, action)) = self.events.pop_first() else {
            return Vec::new();
        };
        match action {
            Action::Deliver(id, side) => self.deliver(id, side),
            Action::Establish(handshake) => self.establish(*handshake),
            Action::GiveUp(id, side) => self.give_up(id, side),
            Action::TimeOut(id, answer) => {
                self.fail(id, EventKind::TimedOut);
                // The opener may have given up.
                let _gone = answer.send(Err(Errno::ETIMEDOUT.into()));
                Vec::new()
            }
        }
    }

    fn deliver(&mut self, id: u64, side: Side) -> Vec<Waker> {
        self.scheduled.remove(&(id, side));
        let Some(connection) = self.connections.get_mut(&id) else {
            return Vec::new();
        };
        if hosts_are_cut(&self.faults, connection.hosts()) {
            self.schedule_giving_up(id);
            return Vec::new();
        }
        let piece = match connection.deliverable(side) {
            0 => 0,
            available => self.conditions.piece(available, &mut self.random),
        };
        let delivered = connection.deliver(side, piece);
        let woken = connection.take_woken();
        if let Some(delivered) = delivered {
            let kind = match delivered {
                Delivered::Bytes(n) => EventKind::Bytes(n),
                Delivered::Fin => EventKind::Fin,
                Delivered::Reset => EventKind::Reset,
                Delivered::Refused => EventKind::Refused,
            };
            self.record(id, side, kind);
        }
        self.schedule_next(id, Some(side));
        woken
    }

    fn establish(&mut self, handshake: Handshake) -> Vec<Waker> {
        let Handshake {
            connection: id,
            to,
            listener,
            answer,
        } = handshake;
        let Some(connection) = self.connections.get(&id) else {
            return Vec::new();
        };
        if connection.is_closed(Side::Opener) {
            self.fail(id, EventKind::Reset);
            return Vec::new();
        }
        if hosts_are_cut(&self.faults, connection.hosts()) {
            self.push(SYN_TIMEOUT, Action::TimeOut(id, answer));
            return Vec::new();
        }
        let Some(backlog) = self.listeners.get_mut(&listener) else {
            self.fail(id, EventKind::Refused);
            // The opener may have given up.
            let _gone = answer.send(Err(Errno::ECONNREFUSED.into()));
            return Vec::new();
        };
        backlog.ready.push_back((id, to));
        let woken = backlog.acceptor.take();
        self.record(id, Side::Acceptor, EventKind::Established);
        let _gone = answer.send(Ok(()));
        self.schedule(id);
        woken.into_iter().collect()
    }

    /// Ends a connection that was never established.
    fn fail(&mut self, id: u64, kind: EventKind) {
        self.record(id, Side::Acceptor, kind);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.give_up(Side::Opener);
            connection.give_up(Side::Acceptor);
            connection.close(Side::Acceptor, 0);
        }
        self.schedule(id);
    }

    fn give_up(&mut self, id: u64, side: Side) -> Vec<Waker> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Vec::new();
        };
        if !hosts_are_cut(&self.faults, connection.hosts()) {
            return Vec::new();
        }
        connection.give_up(side);
        let woken = connection.take_woken();
        self.record(id, side, EventKind::TimedOut);
        self.schedule(id);
        woken
    }

    /// Schedules deliveries of a connection, and forgets a connection that is over.
    fn schedule(&mut self, id: u64) {
        self.schedule_next(id, None);
    }

    /// The same. What follows in the `busy` direction is on its way already.
    fn schedule_next(&mut self, id: u64, busy: Option<Side>) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        if connection.is_finished() {
            self.connections.remove(&id);
            return;
        }
        let due = [Side::Opener, Side::Acceptor]
            .map(|side| (side, connection.has_something_to_deliver(side)));
        for (side, is_due) in due {
            if is_due && self.scheduled.insert((id, side)) {
                let delay = if busy == Some(side) {
                    self.conditions.gap(&mut self.random)
                } else {
                    self.conditions.delay(&mut self.random)
                };
                self.push(Duration::from_millis(delay), Action::Deliver(id, side));
            }
        }
    }

    /// Schedules the ends of connections whose peer has vanished.
    fn schedule_giving_up(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let patience = [Side::Opener, Side::Acceptor].map(|side| (side, connection.patience(side)));
        for (side, patience) in patience {
            if let Some(patience) = patience {
                self.push(patience, Action::GiveUp(id, side));
            }
        }
    }
}

fn hosts_are_cut(faults: &BTreeMap<IpAddr, Fault>, hosts: [IpAddr; 2]) -> bool {
    hosts
        .iter()
        .any(|host| faults.get(host) == Some(&Fault::Vanished))
}

/// `net.ipv4.tcp_syn_retries` of 6, in sum.
const SYN_TIMEOUT: Duration = Duration::from_secs(131);
