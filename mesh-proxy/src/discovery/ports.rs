//! The policies of this pod's ports: watched, cached, or substituted until the policy service
//! responds.
//!
//! Clients choose the ports that they connect to, up to all 65,535, so the number of watched and
//! cached undeclared ports is bounded ([`MAX_PORTS`]). Evicted ports are looked up again. Once the
//! policy service has responded, a port never falls back to the default policy: one bit per port
//! records it after the policy is evicted, and such a port denies all clients until the policy
//! service responds again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mesh_core::policy::inbound::ServerPolicy;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::random::Map;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::watch;

/// The policy of one port, as enforced by a data thread.
#[derive(Debug)]
pub(crate) struct PortPolicy {
    port: u16,
    updates: watch::Receiver<CurrentPolicy>,
    usage: Arc<PortUsage>,
}

/// The policy of a port in force, and its source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CurrentPolicy {
    pub(crate) policy: Arc<ServerPolicy>,
    pub(crate) source: PolicySource,
}

/// The source of a port's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicySource {
    /// The policy service sent it. An invalid policy is replaced by one that denies all clients.
    Received,
    /// The policy service sent it for an earlier watch, and has not responded to the current one.
    Cached,
    /// The policy service's policy was evicted. The policy denies all clients.
    Evicted,
    /// The policy service has never responded for this port: the configured default policy.
    Default,
}

/// The limit of undeclared ports with connections is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "connections to {} ports that the pod does not declare are open; declare the ports in the pod's containers to serve more",
    MAX_PORTS
)]
pub(crate) struct TooManyPorts;

/// Maximum number of undeclared ports that are watched at a time, and of further ports whose last
/// policy is cached. Each watch costs a task and a stream of the policy service.
pub(super) const MAX_PORTS: usize = 1024;

/// How long connections to a port wait for its first policy.
pub(super) const FIRST_POLICY_TIMEOUT: Duration = Duration::from_secs(1);

/// The policies of all ports.
pub(super) struct PortTable {
    created: Instant,
    // Locked by any thread for a look-up, once for each kind of client of a port, not per request.
    table: Mutex<PortEntries>,
}

struct PortEntries {
    watched: Map<u16, WatchedPort>,
    /// Last policies of ports that are no longer watched.
    cached: Map<u16, CachedPolicy>,
    /// Ports with any response of the policy service so far.
    received: PortBitmap,
}

struct WatchedPort {
    sender: watch::Sender<CurrentPolicy>,
    task: AbortHandle,
    usage: Arc<PortUsage>,
    is_declared: bool,
    /// Whether the port had no connections at the last sweep.
    is_idle: bool,
}

struct CachedPolicy {
    policy: Arc<ServerPolicy>,
    last_used: u64,
}

/// Usage of a port's policy. Written by the data threads.
#[derive(Debug, Default)]
pub(super) struct PortUsage {
    /// The number of enforcers with connections; [`CLOSED`] when the port is no longer watched.
    enforcers: AtomicUsize,
    /// When the port was last seen in use, in milliseconds since the creation of [`PortTable`].
    last_used: AtomicU64,
    /// Until when the first connections wait for the policy.
    wait_until: OnceLock<Instant>,
    /// Whether a timed-out wait has been logged.
    is_reported: AtomicBool,
    /// Whether the policy service is unreachable.
    is_unavailable: AtomicBool,
}

const CLOSED: usize = usize::MAX;

/// A set of ports as a bitmap of 8 KiB.
struct PortBitmap(Box<[u64; 1024]>);

impl PolicySource {
    /// Value of the `policy` label of `mesh_proxy_inbound_unanswered_total`; `None` if the policy
    /// service has responded.
    pub(crate) fn unanswered_label(self) -> Option<&'static str> {
        match self {
            Self::Received => None,
            Self::Cached => Some("last"),
            Self::Evicted => Some("refuse"),
            Self::Default => Some("default"),
        }
    }
}

impl PortPolicy {
    /// Returns a receiver of the current policy and its changes.
    pub(crate) fn updates(&self) -> watch::Receiver<CurrentPolicy> {
        self.updates.clone()
    }

    /// Waits for the policy service's first response about the port, until [`FIRST_POLICY_TIMEOUT`]
    /// after the first connection began to wait. Returns the source of the policy then in force.
    pub(crate) async fn wait_for_policy(&self) -> PolicySource {
        let mut updates = self.updates.clone();
        let source = updates.borrow().source;
        if source == PolicySource::Received {
            return source;
        }
        let limit = || Instant::now() + FIRST_POLICY_TIMEOUT;
        let until = *self.usage.wait_until.get_or_init(limit);
        let received = updates.wait_for(|current| current.source == PolicySource::Received);
        if timeout_at(until, received).await.is_ok() {
            return self.updates.borrow().source;
        }
        let (source, name) = {
            let current = self.updates.borrow();
            (current.source, current.policy.meta.name().to_owned())
        };
        if source != PolicySource::Received && !self.usage.is_reported.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
            port = self.port,
            waited = ?FIRST_POLICY_TIMEOUT,
            policy = name,
            "No response from the policy service for this port; another policy is in force"
            );
        }
        source
    }

    /// Keeps the port watched until [`release`](Self::release). Returns false if the port is no
    /// longer watched and must be looked up again.
    pub(crate) fn try_acquire(&self) -> bool {
        let acquire = |enforcers| (enforcers != CLOSED).then(|| enforcers + 1);
        let enforcers = &self.usage.enforcers;
        enforcers
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, acquire)
            .is_ok()
    }

    pub(crate) fn release(&self) {
        self.usage.enforcers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PortTable {
    /// Creates a table that stops watching ports that are unused for `idle`, and at most twice as
    /// long.
    pub(super) fn new(idle: Duration, runtime: &Handle) -> Arc<Self> {
        let ports = Arc::new(Self {
            created: Instant::now(),
            table: Mutex::new(PortEntries {
                watched: Map::default(),
                cached: Map::default(),
                received: PortBitmap::default(),
            }),
        });
        // A watch is closed when two consecutive sweeps find the port unused. A zero interval would
        // spin.
        let interval = idle.max(Duration::from_millis(1));
        let weak = Arc::downgrade(&ports);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                match weak.upgrade() {
                    Some(ports) => ports.sweep(),
                    None => return,
                }
            }
        });
        ports
    }

    /// Returns the policy of `port`. If it is not watched, `start` creates the task that watches
    /// it. `policies` are the default policy and the deny policy, which may apply until the policy
    /// service responds.
    pub(super) fn find_or_start<F>(
        &self,
        port: u16,
        is_declared: bool,
        runtime: &Handle,
        policies: [&dyn Fn() -> ServerPolicy; 2],
        start: impl FnOnce(watch::Sender<CurrentPolicy>, Arc<PortUsage>) -> F,
    ) -> Result<PortPolicy, TooManyPorts>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut table = self.table.lock();
        let now = self.now();
        if let Some(watched) = table.watched.get_mut(&port) {
            watched.is_idle = false;
            watched.usage.last_used.store(now, Ordering::Relaxed);
            return Ok(watched.subscribe(port));
        }
        // Removed first, because evicting another port may evict this port's cached policy.
        let cached = table.cached.remove(&port);
        if !is_declared && let Err(error) = table.make_room() {
            table.cached.extend(cached.map(|cached| (port, cached)));
            return Err(error);
        }
        let sender = watch::Sender::new(table.initial(port, cached, policies));
        let usage = Arc::new(PortUsage::default());
        usage.last_used.store(now, Ordering::Relaxed);
        let task = runtime.spawn(start(sender.clone(), usage.clone()));
        let watched = WatchedPort {
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
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn sweep(&self) {
        let mut table = self.table.lock();
        let now = self.now();
        let mut unused = Vec::new();
        for (port, watched) in &mut table.watched {
            if watched.is_used() {
                watched.usage.last_used.store(now, Ordering::Relaxed);
                watched.is_idle = false;
            } else if std::mem::replace(&mut watched.is_idle, true) && !watched.is_kept() {
                unused.push(*port);
            }
        }
        for port in unused {
            table.evict(port);
        }
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.watched.len(), table.cached.len())
    }
}

impl PortEntries {
    /// Returns the policy of a port until the policy service responds.
    fn initial(
        &self,
        port: u16,
        cached: Option<CachedPolicy>,
        [default, deny]: [&dyn Fn() -> ServerPolicy; 2],
    ) -> CurrentPolicy {
        let (policy, source) = match cached {
            Some(cached) => (cached.policy, PolicySource::Cached),
            None if self.received.contains(port) => (Arc::new(deny()), PolicySource::Evicted),
            None => (Arc::new(default()), PolicySource::Default),
        };
        CurrentPolicy { policy, source }
    }

    /// Evicts ports until one more can be watched: of the ports without connections, first those
    /// that the policy service has never responded about, then the least recently used one.
    fn make_room(&mut self) -> Result<(), TooManyPorts> {
        while self.undeclared().count() >= MAX_PORTS {
            let unused = self.undeclared().filter(|(_, watched)| !watched.is_used());
            let first = unused.min_by_key(|(_, watched)| watched.eviction_rank());
            let port = first.map(|(port, _)| *port).ok_or(TooManyPorts)?;
            self.evict(port);
        }
        Ok(())
    }

    fn undeclared(&self) -> impl Iterator<Item = (&u16, &WatchedPort)> {
        self.watched
            .iter()
            .filter(|(_, watched)| !watched.is_declared)
    }

    /// Closes the watch of a port, unless a connection has acquired it concurrently, and caches its
    /// policy.
    fn evict(&mut self, port: u16) {
        let Some(watched) = self.watched.get(&port) else {
            return;
        };
        let closed = watched.usage.enforcers.compare_exchange(
            0,
            CLOSED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if closed.is_err() {
            return;
        }
        let CurrentPolicy { policy, source } = watched.sender.borrow().clone();
        let last_used = watched.usage.last_used.load(Ordering::Relaxed);
        self.watched.remove(&port);
        match source {
            PolicySource::Received | PolicySource::Cached => {
                self.received.insert(port);
                self.cache(port, CachedPolicy { policy, last_used });
            }
            PolicySource::Evicted | PolicySource::Default => {}
        }
    }

    fn cache(&mut self, port: u16, policy: CachedPolicy) {
        if self.cached.len() >= MAX_PORTS
            && let Some(oldest) = self
                .cached
                .iter()
                .min_by_key(|(_, cached)| cached.last_used)
        {
            let oldest = *oldest.0;
            self.cached.remove(&oldest);
        }
        self.cached.insert(port, policy);
    }
}

impl WatchedPort {
    fn subscribe(&self, port: u16) -> PortPolicy {
        PortPolicy {
            port,
            updates: self.sender.subscribe(),
            usage: self.usage.clone(),
        }
    }

    fn is_used(&self) -> bool {
        self.usage.enforcers.load(Ordering::Acquire) > 0
    }

    /// Whether the port stays watched without connections: declared ports always, others while the
    /// policy service is unreachable and could not send their policy again.
    fn is_kept(&self) -> bool {
        let has_policy = matches!(
            self.sender.borrow().source,
            PolicySource::Received | PolicySource::Cached
        );
        self.is_declared || (has_policy && self.usage.is_unavailable.load(Ordering::Relaxed))
    }

    /// Ports with the lowest rank are evicted first.
    fn eviction_rank(&self) -> (bool, u64) {
        let is_default = self.sender.borrow().source == PolicySource::Default;
        (!is_default, self.usage.last_used.load(Ordering::Relaxed))
    }
}

impl Drop for WatchedPort {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PortUsage {
    pub(super) fn set_unavailable(&self, is_unavailable: bool) {
        self.is_unavailable.store(is_unavailable, Ordering::Relaxed);
    }
}

impl Default for PortBitmap {
    fn default() -> Self {
        Self(Box::new([0; 1024]))
    }
}

impl PortBitmap {
    fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port >> 6)] >> (port & 63) & 1 == 1
    }

    fn insert(&mut self, port: u16) {
        self.0[usize::from(port >> 6)] |= 1 << (port & 63);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
