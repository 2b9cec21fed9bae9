//! Whether this pod's connections reach the proxy, found out by making one.
//!
//! A proxy next to an application whose traffic nobody redirects looks well and protects nothing.
//! Where the injector says so (`MESH_PROXY_REDIRECT_CHECK`), the control thread connects to an
//! address that every mechanism of redirection hands to the outbound listener even for the proxy
//! itself, and that leads nowhere otherwise. [`Check`] asks until one of its own connections has
//! arrived there; until then the proxy is not ready, and a native sidecar that is not ready holds
//! its application back. [`Witness`] is the other end: the data threads recognise such connections
//! as they are accepted, before anything is looked up or counted.
//!
//! Redirection that was there once is not asked about again: what happens to it later is the
//! agent's to watch and to repair.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::resilience::Backoff;
use mesh_runtime::admin::Condition;
use mesh_runtime::metrics::{Gauge, Labels, Registry};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::control::backoff::Retries;
use crate::tls::CredentialsRx;
use crate::transport::listen::AcceptedConnection;
use crate::transport::original_dst::canonical;

/// Completes "waiting for …" in the answer of `/ready`.
pub const CONDITION: &str = "connections of this pod to be redirected to the proxy (is the mesh agent running on this node?)";

/// The control thread's end: asks.
#[derive(Debug)]
pub struct Check {
    addr: SocketAddr,
    sighted: mpsc::Receiver<SocketAddr>,
    ready: Condition,
    verified: Gauge,
    /// Own addresses of the latest connections. More than one, because a busy data thread may
    /// accept a connection after the next one was begun.
    asked: VecDeque<SocketAddr>,
}

/// The data threads' end: sees what arrives.
#[derive(Clone, Debug)]
pub struct Witness {
    addr: SocketAddr,
    sighted: mpsc::Sender<SocketAddr>,
}

/// Why a connection to the check address says nothing of redirection, or speaks against it.
#[derive(Debug, thiserror::Error)]
enum Missed {
    #[error("it cannot be connected to: {0}")]
    Failed(#[from] io::Error),
    #[error("nobody answers there")]
    Silence,
    #[error("somebody else accepts connections to it")]
    Elsewhere,
}

/// From one connection to the next. The agent repairs a pod within a second of its first process,
/// and the application waits for it.
const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(50),
    max: Duration::from_secs(1),
    jitter: 0.1,
};

/// How long it may take until the proxy is told of in the log that waits: longer than an agent
/// takes that is there.
const FIRST_NOTICE: Duration = Duration::from_secs(3);

/// Between two notices in the log.
const NOTICE: Duration = Duration::from_secs(60);

/// Connections whose arrival is still recognised.
const REMEMBERED: usize = 8;

/// Room for sightings that the control thread has not looked at. When it is full, applications are
/// connecting to the check address too, and the check asks again.
const SIGHTINGS: usize = 16;

/// Both ends of the check of `addr`. `ready` holds from the first own connection that arrives.
pub fn new(addr: SocketAddr, ready: Condition, registry: &Registry) -> (Check, Witness) {
    let (tx, sighted) = mpsc::channel(SIGHTINGS);
    let verified = registry
        .gauge_family(
            "mesh_proxy_redirection_verified",
            "Whether a connection of this pod has been seen to be redirected to the proxy (1) or none yet (0)",
        )
        .with(&Labels::new());
    let check = Check {
        addr,
        sighted,
        ready,
        verified,
        asked: VecDeque::new(),
    };
    let witness = Witness { addr, sighted: tx };
    (check, witness)
}

impl Check {
    /// Asks until the answer is yes, and then stays for the life of the process. Begins with the
    /// first certificate, as accepting does.
    pub async fn run(mut self, mut credentials: CredentialsRx) {
        // `Err` means that there will never be one; the process is ending.
        if credentials.wait_for(Option::is_some).await.is_ok() {
            self.until_redirected().await;
            tracing::info!("Connections of this pod are redirected to the proxy");
            self.verified.set(1);
            self.ready.set(true);
        }
        // Data threads recognise connections to the address for as long as they run, and need not
        // know that nobody listens any more.
        std::future::pending::<()>().await;
    }

    async fn until_redirected(&mut self) {
        let mut retries = Retries::new(BACKOFF);
        let mut notice_at = Instant::now() + FIRST_NOTICE;
        loop {
            let next = Instant::now() + retries.next_wait();
            let asked = self.ask(next).await;
            if self.is_sighted(next).await {
                return;
            }
            if Instant::now() >= notice_at {
                notice_at = Instant::now() + NOTICE;
                let missed = asked.err().unwrap_or(Missed::Elsewhere);
                tracing::warn!(
                    check = %self.addr,
                    reason = %missed,
                    "Connections of this pod are not redirected to the proxy; it stays not ready until they are (is the mesh agent running on this node?)"
                );
            }
        }
    }

    /// Makes one connection and closes it; whoever accepts it does so as well. A redirected
    /// connection stays in the pod and is there at once; where it is not, packets to the address
    /// vanish, and the next try comes sooner than the kernel's own.
    async fn ask(&mut self, until: Instant) -> Result<(), Missed> {
        let connection = timeout_at(until, TcpStream::connect(self.addr))
            .await
            .map_err(|_elapsed| Missed::Silence)??;
        if self.asked.len() == REMEMBERED {
            self.asked.pop_front();
        }
        self.asked.push_back(canonical(connection.local_addr()?));
        Ok(())
    }

    /// Whether an own connection arrives in time.
    async fn is_sighted(&mut self, until: Instant) -> bool {
        while let Ok(Some(peer)) = timeout_at(until, self.sighted.recv()).await {
            if self.asked.contains(&peer) {
                return true;
            }
        }
        // The channel ends only with the data threads, and the process follows them.
        tokio::time::sleep_until(until).await;
        false
    }
}

impl Witness {
    /// Whether a connection is nobody's traffic but a question whether it arrives. The caller
    /// closes it.
    pub fn recognises(&self, accepted: &AcceptedConnection) -> bool {
        let recognised = accepted.original_dst == self.addr;
        if recognised {
            // Full or closed: the check asks again, or has its answer.
            let _ = self.sighted.try_send(accepted.peer);
        }
        recognised
    }
}

#[cfg(test)]
mod tests;
