//! The traces in progress: what the kernel programs report about a pod's connections, from their
//! log to the clients of the agent's socket. Called by `node_api::server`.
//!
//! A pod is traced while it has a client. The log, a ring buffer that all pods share, is read while
//! any pod is traced. A full ring, and a client that does not read, cause decisions to be missing;
//! each client is told how many.

mod delivery;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mesh_core::node::{PodRef, Refusal, RefusalReason, TraceLine};
use parking_lot::Mutex;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::ebpf::TraceLog;
use crate::node_handle::NodeHandle;
use crate::sys::readiness;
use delivery::Delivery;

/// Traces of one node at once. Each is one question of an operator.
pub const MOST_TRACES: usize = 8;
/// How often missing decisions are looked for, and pods that are not enrolled any more.
const REVIEW_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Traces {
    node_handle: Arc<NodeHandle>,
    /// Held while a trace starts or ends, so that both see the same number of a pod's clients.
    reader: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// Shared with the reader, which never waits while it holds the lock.
    delivery: Arc<Mutex<Delivery>>,
}

/// One client's trace of one pod. [`Traces::end`] ends it.
#[derive(Debug)]
pub struct Trace {
    pub lines: mpsc::Receiver<TraceLine>,
    cookie: u64,
    id: u64,
}

impl Traces {
    pub fn new(node_handle: Arc<NodeHandle>) -> Self {
        Self {
            node_handle,
            reader: tokio::sync::Mutex::default(),
            delivery: Arc::default(),
        }
    }

    /// Starts to trace an enrolled pod. Decisions after the return are reported.
    pub async fn start(&self, pod: &PodRef) -> Result<Trace, Refusal> {
        let mut reader = self.reader.lock().await;
        if self.delivery.lock().clients() >= MOST_TRACES {
            return Err(Refusal {
                reason: RefusalReason::TryAgain,
                message: format!(
                    "pod {pod} cannot be traced: {MOST_TRACES} traces are in progress on this node, the most that may be; end one of them"
                ),
            });
        }
        let cookie = self.node_handle.pod_to_trace(pod.clone()).await?;
        // First, because it discards what an earlier trace has left in the log.
        if reader.is_none() {
            *reader = Some(self.read_log().await?);
        }
        let (id, lines) = self.delivery.lock().add(cookie);
        let trace = Trace { lines, cookie, id };
        match self.node_handle.start_trace(cookie).await {
            Ok(()) => {
                self.delivery.lock().begin(cookie);
                tracing::info!(%pod, "Tracing the kernel programs' decisions about a pod");
                Ok(trace)
            }
            Err(refusal) => {
                self.release(&mut reader, &trace).await;
                Err(refusal)
            }
        }
    }

    pub async fn end(&self, trace: Trace) {
        let mut reader = self.reader.lock().await;
        self.release(&mut reader, &trace).await;
    }

    async fn release(&self, reader: &mut Option<JoinHandle<()>>, trace: &Trace) {
        let is_last_of_pod = self.delivery.lock().remove(trace.cookie, trace.id);
        if is_last_of_pod {
            self.node_handle.stop_trace(trace.cookie).await;
        }
        let is_idle = self.delivery.lock().clients() == 0;
        if let Some(reader) = reader.take_if(|_| is_idle) {
            reader.abort();
        }
    }

    /// Starts to read the log.
    async fn read_log(&self) -> Result<JoinHandle<()>, Refusal> {
        let log = self.node_handle.trace_log().await?;
        let readiness = log
            .as_fd()
            .try_clone_to_owned()
            .and_then(readiness::readable)
            .map_err(|error| Refusal {
                reason: RefusalReason::Failed,
                message: format!("cannot wait for the log of the kernel programs: {error}"),
            })?;
        let delivery = Arc::clone(&self.delivery);
        Ok(tokio::spawn(read(log, readiness, delivery)))
    }
}

async fn read(mut log: TraceLog, readiness: AsyncFd<OwnedFd>, delivery: Arc<Mutex<Delivery>>) {
    let mut review = tokio::time::interval(REVIEW_INTERVAL);
    loop {
        tokio::select! {
            ready = readiness.readable() => {
                match ready {
                    // Before the read, so that a decision during it makes the log ready again.
                    Ok(mut ready) => ready.clear_ready(),
                    Err(error) => return fail(&delivery, &error),
                }
                delivery.lock().deliver(&mut log);
            }
            _ = review.tick() => delivery.lock().review(&mut log),
        }
    }
}

fn fail(delivery: &Mutex<Delivery>, error: &io::Error) {
    tracing::error!(%error, "Cannot wait for the log of the kernel programs");
    delivery
        .lock()
        .end_all("the agent cannot read the log of the kernel programs");
}
