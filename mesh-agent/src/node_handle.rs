//! Sends commands to the thread that owns the node, one at a time and in order.

use std::{io, thread};

use mesh_core::node::{Attachment, Enrolled, PodRef, Refusal, RefusalReason, Request, Response};
use mesh_runtime::task::TaskGuard;
use tokio::sync::{mpsc, oneshot};

use crate::ebpf::TraceLog;
use crate::node::NodeError;

/// A node starts a handful of pods at a time; further clients wait until their deadline.
const QUEUE_LENGTH: usize = 64;

#[derive(Debug)]
pub struct NodeHandle {
    commands: mpsc::Sender<Command>,
}

/// What the thread does for a kind of node: with pods, or with systemd units.
pub trait Worker: Send + 'static {
    /// Adopts what an earlier agent enrolled.
    fn adopt(&mut self);

    fn reconcile(&mut self);

    fn handle(&mut self, request: &Request) -> Response;

    /// Enrols a running pod that the plugin did not enrol.
    fn enrol_in_place(&mut self, attachment: &Attachment) -> Result<Enrolled, Refusal>;

    /// Returns the cookie of an enrolled pod that kernel programs redirect.
    fn pod_to_trace(&self, pod: &PodRef) -> Result<u64, Refusal>;

    /// Has the kernel programs report their decisions about the pod with this cookie.
    fn start_trace(&self, cookie: u64) -> Result<(), Refusal>;

    fn stop_trace(&self, cookie: u64);

    fn trace_log(&self) -> Result<TraceLog, Refusal>;

    /// Removes the redirection from everything. Returns what could not be undone.
    fn release_all(self) -> Result<Vec<String>, NodeError>;
}

#[derive(Debug)]
enum Command {
    Call(Box<Request>, oneshot::Sender<Response>),
    EnrolInPlace(Box<Attachment>, oneshot::Sender<Result<Enrolled, Refusal>>),
    Reconcile(oneshot::Sender<()>),
    PodToTrace(PodRef, oneshot::Sender<Result<u64, Refusal>>),
    StartTrace(u64, oneshot::Sender<Result<(), Refusal>>),
    StopTrace(u64, oneshot::Sender<()>),
    TraceLog(oneshot::Sender<Result<TraceLog, Refusal>>),
    ReleaseAll(oneshot::Sender<Result<Vec<String>, NodeError>>),
}

impl NodeHandle {
    /// Starts the thread. The receiver resolves when the enrolled pods have been adopted.
    pub fn start(
        mut worker: impl Worker,
        guard: TaskGuard,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (commands, mut queue) = mpsc::channel(QUEUE_LENGTH);
        let (adopted, adoption) = oneshot::channel();
        thread::Builder::new()
            .name("node".to_owned())
            .spawn(move || {
                let _vigil = guard;
                worker.adopt();
                // The receiver is dropped when the agent is already stopping, here and below.
                let _ = adopted.send(());
                while let Some(command) = queue.blocking_recv() {
                    match command {
                        Command::Call(request, reply) => {
                            let _ = reply.send(worker.handle(&request));
                        }
                        Command::EnrolInPlace(attachment, reply) => {
                            let _ = reply.send(worker.enrol_in_place(&attachment));
                        }
                        Command::Reconcile(done) => {
                            worker.reconcile();
                            let _ = done.send(());
                        }
                        Command::PodToTrace(pod, reply) => {
                            let _ = reply.send(worker.pod_to_trace(&pod));
                        }
                        Command::StartTrace(cookie, reply) => {
                            let _ = reply.send(worker.start_trace(cookie));
                        }
                        Command::StopTrace(cookie, done) => {
                            worker.stop_trace(cookie);
                            let _ = done.send(());
                        }
                        Command::TraceLog(reply) => {
                            let _ = reply.send(worker.trace_log());
                        }
                        // Later callers receive the refusal that the agent is stopping.
                        Command::ReleaseAll(done) => {
                            let _ = done.send(worker.release_all());
                            return;
                        }
                    }
                }
            })?;
        Ok((Self { commands }, adoption))
    }

    /// Returns `None` if the thread has ended.
    async fn send<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, result) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        result.await.ok()
    }

    pub async fn call(&self, request: Request) -> Response {
        let command = |reply| Command::Call(Box::new(request), reply);
        let response = self.send(command).await;
        response.unwrap_or_else(|| Response::Refused(stopping()))
    }

    /// Enrols a running pod that the plugin did not enrol.
    pub async fn enrol_in_place(&self, attachment: Attachment) -> Result<Enrolled, Refusal> {
        let command = |reply| Command::EnrolInPlace(Box::new(attachment), reply);
        let result = self.send(command).await;
        result.unwrap_or_else(|| Err(stopping()))
    }

    /// Returns the cookie of an enrolled pod that kernel programs redirect.
    pub async fn pod_to_trace(&self, pod: PodRef) -> Result<u64, Refusal> {
        let result = self.send(|reply| Command::PodToTrace(pod, reply)).await;
        result.unwrap_or_else(|| Err(stopping()))
    }

    /// Has the kernel programs report their decisions about the pod with this cookie.
    pub async fn start_trace(&self, cookie: u64) -> Result<(), Refusal> {
        let command = |reply| Command::StartTrace(cookie, reply);
        let result = self.send(command).await;
        result.unwrap_or_else(|| Err(stopping()))
    }

    pub async fn stop_trace(&self, cookie: u64) {
        // `None` means that the thread ended; the next agent stops all traces.
        let _ = self.send(|done| Command::StopTrace(cookie, done)).await;
    }

    pub async fn trace_log(&self) -> Result<TraceLog, Refusal> {
        let result = self.send(Command::TraceLog).await;
        result.unwrap_or_else(|| Err(stopping()))
    }

    /// Releases every pod, and ends the thread. Returns what could not be undone.
    pub async fn release_all(&self) -> Result<Vec<String>, NodeError> {
        let result = self.send(Command::ReleaseAll).await;
        // The thread ended earlier, which its guard reported.
        result.unwrap_or_else(|| Ok(vec!["the node thread has ended".to_owned()]))
    }

    /// Reconciles the node once, and returns when that is complete.
    pub async fn reconcile(&self) {
        // `None` means that the thread ended, which its guard reports.
        let _ = self.send(Command::Reconcile).await;
    }
}

fn stopping() -> Refusal {
    Refusal {
        reason: RefusalReason::TryAgain,
        message: "the mesh agent is stopping; retry".to_owned(),
    }
}
