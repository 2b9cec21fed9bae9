//! Verifies by a connection that the pod's connections are redirected to the proxy.
//!
//! A proxy whose application's traffic is not redirected appears healthy and protects nothing. If
//! `MESH_PROXY_REDIRECT_CHECK` is set, the control thread connects to the check address: every tier
//! redirects it to the outbound listener, even for the proxy itself, and it is unreachable
//! otherwise. [`RedirectionProbe`] repeats this until one of its connections arrives. Until then
//! the proxy is not ready, and the application of a native sidecar that is not ready does not
//! start. [`ProbeListener`] recognises the connections on the data threads when they are accepted,
//! before any lookup or metric.
//!
//! Redirection that has been verified is not verified again: the agent watches and repairs it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::resilience::Backoff;
use mesh_runtime::admin::Condition;
use mesh_runtime::log::chain;
use mesh_runtime::metrics::{Gauge, Labels, Registry};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::control::backoff::Retries;
use crate::tls::CredentialsRx;
use crate::transport::listen::AcceptedConnection;
use crate::transport::original_dst::canonical;
use crate::transport::socket::Socket;

/// Completes "waiting for …" in the response of `/ready`.
pub(crate) const CONDITION: &str = "connections of this pod to be redirected to the proxy (is the mesh agent running on this node?)";

/// Connects to the check address, on the control thread.
#[derive(Debug)]
pub(crate) struct RedirectionProbe {
    addr: SocketAddr,
    arrivals: mpsc::Receiver<SocketAddr>,
    ready: Condition,
    verified: Gauge,
    /// Local addresses of the last connections. More than one, because a busy data thread may
    /// accept a connection after the next one is opened.
    sent: VecDeque<SocketAddr>,
}

/// Recognises connections to the check address, on the data threads.
#[derive(Clone, Debug)]
pub(crate) struct ProbeListener {
    addr: SocketAddr,
    arrivals: mpsc::Sender<SocketAddr>,
}

/// Why a connection to the check address has not arrived at the proxy.
#[derive(Debug, thiserror::Error)]
enum ProbeFailure {
    #[error("cannot connect")]
    Connect(#[from] io::Error),
    #[error("no response")]
    TimedOut,
    #[error("another process accepts the connections")]
    NotProxy,
}

/// The wait between connections. The agent repairs a pod within a second of its first process, and
/// the application waits for the probe.
const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(50),
    max: Duration::from_secs(1),
    jitter: 0.1,
};

/// The delay of the first warning, longer than a running agent needs for a repair.
const FIRST_WARNING: Duration = Duration::from_secs(3);

/// The interval of further warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Connections whose arrival is still recognised.
const MAX_SENT: usize = 8;

/// Arrivals that wait for the control thread. When there are more, applications are connecting to
/// the check address too, and the probe connects again.
const MAX_ARRIVALS: usize = 16;

/// Creates the probe of `addr` and its listener. Sets `ready` when the first connection of the
/// probe arrives.
pub(crate) fn new(
    addr: SocketAddr,
    ready: Condition,
    registry: &Registry,
) -> (RedirectionProbe, ProbeListener) {
    let (tx, arrivals) = mpsc::channel(MAX_ARRIVALS);
    let verified = registry
        .gauge_family(
            "mesh_proxy_redirection_verified",
            "Whether a connection of this pod has been seen to be redirected to the proxy (1) or none yet (0)",
        )
        .with(&Labels::new());
    let probe = RedirectionProbe {
        addr,
        arrivals,
        ready,
        verified,
        sent: VecDeque::new(),
    };
    let listener = ProbeListener { addr, arrivals: tx };
    (probe, listener)
}

impl RedirectionProbe {
    /// Connects until a connection arrives; does not return. Starts with the first certificate,
    /// when the data threads start to accept.
    pub(crate) async fn run(mut self, mut credentials: CredentialsRx) {
        // Fails only when the process is exiting.
        if credentials.wait_for(Option::is_some).await.is_ok() {
            self.wait_for_redirection().await;
            tracing::info!("Connections of this pod are redirected to the proxy");
            self.verified.set(1);
            self.ready.set(true);
        }
        // Keeps the channel open: the data threads continue to recognise connections.
        std::future::pending::<()>().await;
    }

    async fn wait_for_redirection(&mut self) {
        let mut retries = Retries::new(BACKOFF);
        let mut warn_at = Instant::now() + FIRST_WARNING;
        loop {
            let next = Instant::now() + retries.next_wait();
            let sent = self.connect(next).await;
            if self.arrives_before(next).await {
                return;
            }
            if Instant::now() >= warn_at {
                warn_at = Instant::now() + WARNING_INTERVAL;
                let failure = sent.err().unwrap_or(ProbeFailure::NotProxy);
                tracing::warn!(
                    check = %self.addr,
                    reason = chain(&failure),
                    "Connections of this pod are not redirected to the proxy, which is not ready until they are (is the mesh agent running on this node?)"
                );
            }
        }
    }

    /// Opens a connection and closes it, as its acceptor does. A redirected connection stays in the
    /// pod and is established immediately. Without redirection, packets to the address are dropped;
    /// the next connection is attempted sooner than the kernel retransmits.
    async fn connect(&mut self, deadline: Instant) -> Result<(), ProbeFailure> {
        let connection = timeout_at(deadline, Socket::connect(self.addr))
            .await
            .map_err(|_elapsed| ProbeFailure::TimedOut)??;
        if self.sent.len() == MAX_SENT {
            self.sent.pop_front();
        }
        self.sent.push_back(canonical(connection.local_addr()?));
        Ok(())
    }

    /// Whether a connection of this probe arrives before `deadline`.
    async fn arrives_before(&mut self, deadline: Instant) -> bool {
        while let Ok(Some(peer)) = timeout_at(deadline, self.arrivals.recv()).await {
            if self.sent.contains(&peer) {
                return true;
            }
        }
        // The channel closes only when the process exits.
        tokio::time::sleep_until(deadline).await;
        false
    }
}

impl ProbeListener {
    /// Reports a connection to the check address to the probe and closes it; returns every other.
    pub(crate) fn without_probe(&self, accepted: AcceptedConnection) -> Option<AcceptedConnection> {
        if accepted.original_dst != self.addr {
            return Some(accepted);
        }
        // If the channel is full, the probe connects again.
        let _ = self.arrivals.try_send(accepted.peer);
        // A reset could arrive before the probe reads the local address of its socket. The socket
        // would have none, and the probe would not recognise this arrival.
        accepted.finish();
        None
    }
}

#[cfg(test)]
mod tests;
