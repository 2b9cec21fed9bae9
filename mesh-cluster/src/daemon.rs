//! A process: starts its tasks and runs until a signal arrives or a task exits.
//!
//! On startup, files and addresses come first, so that invalid ones end the process immediately;
//! then the source; the gRPC server only starts when the index has read everything, since clients
//! would believe responses from an incomplete index ("no such service"). On shutdown, streams end
//! regularly, connections get GOAWAY, and the admin server responds until the end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use kube::Client;
use mesh_api::grpc::SanitizeRequests;
use mesh_core::rights::Right;
use mesh_runtime::admin::{self, Admin, Condition, Readiness};
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::drain::{self, Drain, Outcome};
use mesh_runtime::metrics::Registry;
use mesh_runtime::signal::Termination;
use mesh_runtime::task::{self, Supervisor, TaskMonitor};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::api_server::{self, ConnectError, Events};
use crate::calls::Calls;
use crate::flags::{Cluster, Source};
use crate::source::kube::KubeSource;
use crate::source::kube::kinds::{self, WatchedKind};
use crate::source::local::DirectorySource;
use crate::source::{self, Received};
use crate::webhook::{self, Reviewer, ServingCertificate};

mod certificate_source;

pub use self::certificate_source::{CertificateSource, MountedFiles};

/// How long open calls may take to complete on shutdown. Kubernetes kills the process after 30 s.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// Why a controller did not start, or exited.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("cannot start the admin server")]
    Admin(#[source] admin::BindError),
    #[error("cannot listen on {addr} for {what}; another instance may be running")]
    Listen {
        addr: SocketAddr,
        what: &'static str,
        source: io::Error,
    },
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("{0}")]
    TaskExited(task::TaskExit),
}

/// The parts that every controller has.
pub struct Daemon {
    pub registry: Registry,
    pub readiness: Readiness,
    /// Holds once everything has been started. The admin server is started first, and would report
    /// a controller as ready that has not added its conditions yet.
    started: Condition,
    pub supervisor: Supervisor,
    monitor: TaskMonitor,
    drain: Drain,
    pub watch: drain::Watch,
    termination: Termination,
    pub calls: Calls,
}

impl Daemon {
    pub fn new() -> Result<Self, DaemonError> {
        let termination = Termination::listen().map_err(DaemonError::Signals)?;
        Ok(Self::with(termination))
    }

    /// A process of a simulated world.
    #[cfg(feature = "simulation")]
    pub fn simulated(termination: Termination) -> Self {
        Self::with(termination)
    }

    fn with(termination: Termination) -> Self {
        let (supervisor, monitor) = task::supervisor();
        let (drain, watch) = drain::channel();
        let registry = Registry::new();
        registry.export_process();
        BuildInfo::CURRENT.export(&registry, "controller_build_info");
        let readiness = Readiness::new();
        Self {
            calls: Calls::new(&registry),
            registry,
            started: readiness.condition("the controller to start"),
            readiness,
            supervisor,
            monitor,
            drain,
            watch,
            termination,
        }
    }

    pub async fn serve_admin(&self, addr: SocketAddr) -> Result<(), DaemonError> {
        let listener = admin::bind(addr).await.map_err(DaemonError::Admin)?;
        // Linkerd's manifests use it as liveness probe.
        let ping = |_call| async { admin::text(StatusCode::OK, "pong\n") };
        let admin = Admin::new(self.registry.clone(), self.readiness.clone()).route("/ping", ping);
        self.supervisor
            .spawn("admin server", admin::serve(listener, admin));
        Ok(())
    }

    /// Spawns the source, applies its batches to the index, and waits until everything has been
    /// read once; returns `false` if a signal arrives or the source exits first. An API server is
    /// called with the name and the rights of this process, and its objects of `kinds` are watched.
    pub async fn read_source<I: Send + 'static>(
        &mut self,
        source: Source,
        (program, rights): (&str, Vec<Right>),
        kinds: &'static [WatchedKind],
        index: &Arc<Mutex<I>>,
        mut apply: impl FnMut(&mut I, Received) + Send + 'static,
    ) -> Result<bool, DaemonError> {
        let index = index.clone();
        let apply = move |received| apply(&mut index.lock(), received);
        let (batches, received_batches) = source::channel();
        let (complete, completed) = oneshot::channel();
        let ready = self.readiness.condition("the source to be read");
        if source.dirs.is_empty() {
            let client = connect(&source.cluster, program, rights).await?;
            let kube = KubeSource::new(client, kinds, &self.registry);
            self.supervisor.spawn("source", kube.run(batches));
        } else {
            let read = kinds::in_directories(kinds);
            let local = DirectorySource::new(source.dirs, read, &self.registry);
            self.supervisor.spawn("source", local.run(batches));
        }
        self.supervisor.spawn(
            "index",
            apply_batches(received_batches, apply, ready, complete),
        );
        let completed = self.wait_or_stop(completed).await?;
        Ok(matches!(completed, Some(Ok(()))))
    }

    /// Spawns the writer of events about objects, and returns their sender.
    pub fn write_events(&self, client: &Client, controller: &'static str) -> Events {
        let (events, write) = Events::channel(client.clone(), controller, &self.registry);
        self.supervisor.spawn("events", write);
        events
    }

    pub fn serve_webhook(
        &self,
        listener: TcpListener,
        serving: Arc<ServingCertificate>,
        reviewer: Arc<dyn Reviewer>,
    ) {
        let served = webhook::serve(listener, serving, reviewer, self.watch.clone());
        self.supervisor.spawn("webhook server", served);
    }

    pub fn serve_grpc(&self, listener: TcpListener, services: Routes) {
        let drain = self.watch.clone();
        self.supervisor.spawn("gRPC server", async move {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let result = Server::builder()
                .layer(SanitizeRequests)
                .add_routes(services)
                .serve_with_incoming_shutdown(incoming, drain.draining())
                .await;
            if let Err(error) = result {
                tracing::error!(%error, "The gRPC server failed");
            }
        });
    }

    /// Waits for a future during startup; returns `None` if a signal arrives first.
    pub async fn wait_or_stop<T>(
        &mut self,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, DaemonError> {
        tokio::select! {
            biased;
            output = future => Ok(Some(output)),
            ended = self.monitor.first() => Err(DaemonError::TaskExited(ended)),
            signal = self.termination.received() => {
                tracing::info!(signal, "Stopped during startup");
                Ok(None)
            }
        }
    }

    /// Waits for a signal and drains, or for the first task that exits.
    pub async fn run_until_stopped(mut self) -> Result<(), DaemonError> {
        self.started.set(true);
        tokio::select! {
            biased;
            signal = self.termination.received() => {
                tracing::info!(signal, "Stopping");
            }
            ended = self.monitor.first() => return Err(DaemonError::TaskExited(ended)),
        }
        drop(self.watch);
        match self.drain.drain(DRAIN_GRACE).await {
            Outcome::Complete => tracing::info!("Stopped"),
            Outcome::Expired { remaining } => {
                tracing::warn!(remaining, "Stopped before all calls completed");
            }
        }
        Ok(())
    }
}

async fn apply_batches(
    mut batches: mpsc::Receiver<Received>,
    mut apply: impl FnMut(Received),
    ready: Condition,
    complete: oneshot::Sender<()>,
) {
    let mut complete = Some(complete);
    while let Some(received) = batches.recv().await {
        let changes = received.batch.len();
        apply(received);
        if let Some(complete) = complete.take() {
            ready.set(true);
            tracing::info!("Read the source");
            // The receiver is dropped when the process is already stopping.
            let _ = complete.send(());
        } else {
            tracing::debug!(changes, "Applied changes");
        }
    }
}

/// Connects to the API server with the name and the rights of this process.
pub async fn connect(
    cluster: &Cluster,
    program: &str,
    rights: Vec<Right>,
) -> Result<Client, DaemonError> {
    api_server::connect(cluster, program, rights)
        .await
        .map_err(DaemonError::Connect)
}

/// Binds a TCP port for what the error then names.
pub async fn listen(addr: SocketAddr, what: &'static str) -> Result<TcpListener, DaemonError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| DaemonError::Listen { addr, what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn controller_that_is_still_adding_conditions_is_not_ready() {
        let daemon = Daemon::new().expect("signals can be handled");
        assert!(!daemon.readiness.is_ready());
        daemon.readiness.condition("the first").set(true);
        assert!(!daemon.readiness.is_ready());
        daemon.started.set(true);
        assert!(daemon.readiness.is_ready());
    }
}
