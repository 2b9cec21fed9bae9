//! The policies of this pod's ports: which are watched, which are remembered, and what holds for a
//! port that was not answered for.
//!
//! Clients choose the ports they connect to, all 65,535 of them if they like, so what is kept of
//! ports that the pod does not declare is bounded ([`MAX_PORTS`]). What is given up is asked for
//! again. A port that the policy service has answered for once never falls back to the default
//! policy: a bit for each port remembers that after everything else of it is gone, and such a port
//! refuses until it is answered for again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use mesh_core::policy::inbound::ServerPolicy;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// The policy of one port, for those who judge by it.
#[derive(Debug)]
pub struct PortPolicy {
    port: u16,
    updates: watch::Receiver<Current>,
    usage: Arc<Usage>,
}

/// What a port is judged by now.
#[derive(Clone, Debug, PartialEq)]
pub struct Current {
    pub policy: Arc<ServerPolicy>,
    pub basis: Basis,
}

/// Why a port is judged by this policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The policy service says so, or has said something that cannot be read; then the policy
    /// refuses.
    Answer,
    /// It has said so before, and has not answered since it was asked again.
    LastAnswer,
    /// It has answered before, but what it said is given up. The policy refuses.
    Forgotten,
    /// It has never answered for this port: the configured default policy.
    Default,
}

/// As many ports are in use as can be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "connections to {} ports that the pod does not declare are open; declare the ports in the pod's containers to serve more",
    MAX_PORTS
)]
pub struct TooManyPorts;

/// How many ports that the pod does not declare are watched at a time, and of how many others the
/// last answer is remembered. Each watched one costs a task and a stream of the policy service.
pub(super) const MAX_PORTS: usize = 1024;

/// How long connections to a port wait for the first answer about it.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);

/// The table of all ports.
pub(super) struct Ports {
    began: Instant,
    // Taken by any thread for a look-up, once for each kind of client of a port, not per request.
    table: Mutex<Table>,
}

struct Table {
    watched: HashMap<u16, Watched>,
    /// Last answers for ports that are watched no more.
    last: HashMap<u16, Last>,
    answered: PortBits,
}

struct Watched {
    sender: watch::Sender<Current>,
    task: AbortHandle,
    usage: Arc<Usage>,
    is_declared: bool,
    /// Whether the last sweep found no connection.
    is_idle: bool,
}

struct Last {
    policy: Arc<ServerPolicy>,
    used: u64,
}

/// Who uses a port's policy. Written by the data threads.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// How many judges have connections; [`GIVEN_UP`] when the port is watched no more.
    judges: AtomicUsize,
    /// When that changed last, in milliseconds since the table was made.
    used: AtomicU64,
    /// How long the first connections wait.
    wait_until: OnceLock<Instant>,
    /// Whether the wait was in vain, and that was logged.
    is_reported: AtomicBool,
    /// The policy service cannot be reached.
    is_away: AtomicBool,
}

const GIVEN_UP: usize = usize::MAX;

/// A set of ports in 8 KiB.
struct PortBits(Box<[u64; 1024]>);

impl Basis {
    /// Value of the `policy` label of `mesh_proxy_inbound_unanswered_total`; `None` when the
    /// service has answered.
    pub fn unanswered(self) -> Option<&'static str> {
        match self {
            Self::Answer => None,
            Self::LastAnswer => Some("last"),
            Self::Forgotten => Some("refuse"),
            Self::Default => Some("default"),
        }
    }
}

impl PortPolicy {
    /// Changes from now on.
    pub fn updates(&self) -> watch::Receiver<Current> {
        self.updates.clone()
    }

    /// Waits for the first answer about the port, until [`FIRST_ANSWER`] after the first connection
    /// began to. Returns why the port is judged as it is then.
    pub async fn wait_for_policy(&self) -> Basis {
        let mut updates = self.updates.clone();
        let basis = updates.borrow().basis;
        if basis == Basis::Answer {
            return basis;
        }
        let limit = || Instant::now() + FIRST_ANSWER;
        let until = *self.usage.wait_until.get_or_init(limit);
        let answered = updates.wait_for(|current| current.basis == Basis::Answer);
        if timeout_at(until, answered).await.is_ok() {
            return self.updates.borrow().basis;
        }
        let (basis, name) = {
            let current = self.updates.borrow();
            (current.basis, current.policy.meta.name().to_owned())
        };
        if basis != Basis::Answer && !self.usage.is_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                port = self.port,
                waited = ?FIRST_ANSWER,
                policy = name,
                "The policy service has not answered for this port; connections are judged by another policy until it does"
            );
        }
        basis
    }

    /// Keeps the port watched until [`leave`](Self::leave). False when it is not watched any more
    /// and has to be looked up anew.
    pub fn enter(&self) -> bool {
        let entering = |judges| (judges != GIVEN_UP).then(|| judges + 1);
        let judges = &self.usage.judges;
        judges
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, entering)
            .is_ok()
    }

    pub fn leave(&self) {
        self.usage.judges.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Ports {
    /// What is not used for `idle`, and at most as long again, is watched no more.
    pub(super) fn new(idle: Duration, runtime: &Handle) -> Arc<Self> {
        let ports = Arc::new(Self {
            began: Instant::now(),
            table: Mutex::new(Table {
                watched: HashMap::new(),
                last: HashMap::new(),
                answered: PortBits::default(),
            }),
        });
        // Two sweeps in a row must find a port unused. Never zero: that would spin.
        let pause = idle.max(Duration::from_millis(1));
        let weak = Arc::downgrade(&ports);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                match weak.upgrade() {
                    Some(ports) => ports.sweep(),
                    None => return,
                }
            }
        });
        ports
    }

    /// The policy of `port`. If it is not watched, `start` makes the task that watches it;
    /// `default` and `refusing` are what may hold until the first answer.
    pub(super) fn find_or_start<F>(
        &self,
        port: u16,
        is_declared: bool,
        runtime: &Handle,
        policies: [&dyn Fn() -> ServerPolicy; 2],
        start: impl FnOnce(watch::Sender<Current>, Arc<Usage>) -> F,
    ) -> Result<PortPolicy, TooManyPorts>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut table = self.table.lock();
        let now = self.now();
        if let Some(watched) = table.watched.get_mut(&port) {
            watched.is_idle = false;
            watched.usage.used.store(now, Ordering::Relaxed);
            return Ok(watched.subscribe(port));
        }
        // Taken out first: making room may make this port's own answer the oldest.
        let last = table.last.remove(&port);
        if !is_declared && let Err(error) = table.make_room() {
            table.last.extend(last.map(|last| (port, last)));
            return Err(error);
        }
        let sender = watch::Sender::new(table.first(port, last, policies));
        let usage = Arc::new(Usage::default());
        usage.used.store(now, Ordering::Relaxed);
        let task = runtime.spawn(start(sender.clone(), usage.clone()));
        let watched = Watched {
            sender,
            task: task.abort_handle(),
            usage,
            is_declared,
            is_idle: false,
        };
        let policy = watched.subscribe(port);
        table.watched.insert(port, watched);
        Ok(policy)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn sweep(&self) {
        let mut table = self.table.lock();
        let now = self.now();
        let mut unused = Vec::new();
        for (port, watched) in &mut table.watched {
            if watched.is_used() {
                watched.usage.used.store(now, Ordering::Relaxed);
                watched.is_idle = false;
            } else if std::mem::replace(&mut watched.is_idle, true) && !watched.is_kept() {
                unused.push(*port);
            }
        }
        for port in unused {
            table.give_up(port);
        }
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.watched.len(), table.last.len())
    }
}

impl Table {
    /// What holds for a port until it is answered for.
    fn first(
        &self,
        port: u16,
        last: Option<Last>,
        [default, refusing]: [&dyn Fn() -> ServerPolicy; 2],
    ) -> Current {
        let (policy, basis) = match last {
            Some(last) => (last.policy, Basis::LastAnswer),
            None if self.answered.contains(port) => (Arc::new(refusing()), Basis::Forgotten),
            None => (Arc::new(default()), Basis::Default),
        };
        Current { policy, basis }
    }

    /// Makes room for one more port: of those without connections, first goes one that was never
    /// answered for, then the one that was used least recently.
    fn make_room(&mut self) -> Result<(), TooManyPorts> {
        while self.undeclared().count() >= MAX_PORTS {
            let unused = self.undeclared().filter(|(_, watched)| !watched.is_used());
            let least = unused.min_by_key(|(_, watched)| watched.worth());
            let port = least.map(|(port, _)| *port).ok_or(TooManyPorts)?;
            self.give_up(port);
        }
        Ok(())
    }

    fn undeclared(&self) -> impl Iterator<Item = (&u16, &Watched)> {
        self.watched
            .iter()
            .filter(|(_, watched)| !watched.is_declared)
    }

    /// Ends the watch of a port, unless a connection has begun in this moment. Its last answer is
    /// remembered.
    fn give_up(&mut self, port: u16) {
        let Some(watched) = self.watched.get(&port) else {
            return;
        };
        let given_up =
            watched
                .usage
                .judges
                .compare_exchange(0, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        if given_up.is_err() {
            return;
        }
        let Current { policy, basis } = watched.sender.borrow().clone();
        let used = watched.usage.used.load(Ordering::Relaxed);
        self.watched.remove(&port);
        match basis {
            Basis::Answer | Basis::LastAnswer => {
                self.answered.insert(port);
                self.remember(port, Last { policy, used });
            }
            Basis::Forgotten | Basis::Default => {}
        }
    }

    fn remember(&mut self, port: u16, answer: Last) {
        if self.last.len() >= MAX_PORTS
            && let Some(oldest) = self.last.iter().min_by_key(|(_, last)| last.used)
        {
            let oldest = *oldest.0;
            self.last.remove(&oldest);
        }
        self.last.insert(port, answer);
    }
}

impl Watched {
    fn subscribe(&self, port: u16) -> PortPolicy {
        PortPolicy {
            port,
            updates: self.sender.subscribe(),
            usage: self.usage.clone(),
        }
    }

    fn is_used(&self) -> bool {
        self.usage.judges.load(Ordering::Acquire) > 0
    }

    /// Watched without connections: declared ports always, and others while the policy service is
    /// away, so that it is not asked in vain when the next one comes.
    fn is_kept(&self) -> bool {
        let is_known = matches!(
            self.sender.borrow().basis,
            Basis::Answer | Basis::LastAnswer
        );
        self.is_declared || (is_known && self.usage.is_away.load(Ordering::Relaxed))
    }

    /// The order in which ports are given up.
    fn worth(&self) -> (bool, u64) {
        let is_known = self.sender.borrow().basis != Basis::Default;
        (is_known, self.usage.used.load(Ordering::Relaxed))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Usage {
    pub(super) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }
}

impl Default for PortBits {
    fn default() -> Self {
        Self(Box::new([0; 1024]))
    }
}

impl PortBits {
    fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port >> 6)] >> (port & 63) & 1 == 1
    }

    fn insert(&mut self, port: u16) {
        self.0[usize::from(port >> 6)] |= 1 << (port & 63);
    }
}
