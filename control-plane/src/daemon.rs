//! One process of a controller: builds the pieces, joins them, runs until it is told to stop or a
//! piece dies.
//!
//! Start: files and addresses first, so that what is wrong ends the process at once; then the
//! source; gRPC only once the index has read everything, since an answer from half an index ("no
//! such service") would be believed. Stop: streams end well, connections are told to go, the admin
//! server answers to the last.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use http::StatusCode;
use mesh_runtime::{
    admin::{self, Admin, Condition, Readiness},
    build_info::BuildInfo,
    drain::{self, Drain, Outcome},
    metrics::Registry,
    signal::Termination,
    task::{self, Ends, Supervisor},
};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tonic::transport::server::{Router, TcpIncoming};

use crate::{
    bootstrap::{self, BootstrapError},
    cluster::{self, ConnectError},
    config::{Service, Source},
    identity::{AccessError, LoadError},
    injector::SettingsError,
    serve::Calls,
    source::{
        self, Batch,
        kube::{Cluster, kinds::Watched},
        local::Folders,
    },
};

mod destination;
mod identity;
mod injector;
mod policy;

/// How long open calls may take to end when the process stops. Kubernetes kills after 30 s.
const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// Why a controller did not run, or stopped running.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("cannot open the admin server")]
    Admin(#[source] admin::BindError),
    #[error("cannot listen on {addr} for {what} (is another instance running?)")]
    Listen {
        addr: SocketAddr,
        what: &'static str,
        source: io::Error,
    },
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("{0}")]
    Access(AccessError),
    #[error("cannot make the certificates of the mesh")]
    Bootstrap(#[source] BootstrapError),
    #[error("cannot start the injector")]
    Settings(#[source] SettingsError),
    #[error("cannot start the identity service")]
    Identity(#[source] LoadError),
    #[error("{0} is no name of a {1}")]
    Name(String, &'static str),
    #[error("{0}")]
    Died(task::Ended),
}

/// What every controller has.
struct Daemon {
    registry: Registry,
    readiness: Readiness,
    supervisor: Supervisor,
    ends: Ends,
    drain: Drain,
    watch: drain::Watch,
    termination: Termination,
    calls: Calls,
}

/// Runs a controller until it is told to stop.
pub async fn run(service: Service) -> Result<(), DaemonError> {
    match service {
        // It holds several clients; on the stack of `main` they would only be in the way.
        Service::Identity(config) => Box::pin(identity::run(config)).await,
        Service::Destination(config) => destination::run(config).await,
        Service::Policy(config) => policy::run(config).await,
        Service::ProxyInjector(config) => injector::run(config).await,
        Service::Bootstrap(config) => bootstrap::run(config).await.map_err(DaemonError::Bootstrap),
    }
}

impl Daemon {
    fn new() -> Result<Self, DaemonError> {
        let termination = Termination::listen().map_err(DaemonError::Signals)?;
        let (supervisor, ends) = task::supervisor();
        let (drain, watch) = drain::channel();
        let registry = Registry::new();
        registry.export_process();
        BuildInfo::CURRENT.export(&registry, "controller_build_info");
        Ok(Self {
            calls: Calls::new(&registry),
            registry,
            readiness: Readiness::new(),
            supervisor,
            ends,
            drain,
            watch,
            termination,
        })
    }

    async fn serve_admin(&self, addr: SocketAddr) -> Result<(), DaemonError> {
        let listener = admin::bind(addr).await.map_err(DaemonError::Admin)?;
        // Linkerd's manifests probe it.
        let ping = |_call| async { admin::text(StatusCode::OK, "pong\n") };
        let admin = Admin::new(self.registry.clone(), self.readiness.clone()).route("/ping", ping);
        self.supervisor
            .spawn("admin server", admin::serve(listener, admin));
        Ok(())
    }

    /// Reads the source and applies what it says. The answer comes when everything has been read
    /// once. `kinds` are those to follow when the source is an API server, and `service` is who
    /// asks there.
    async fn follow<F>(
        &self,
        source: Source,
        service: &str,
        kinds: &'static [Watched],
        apply: F,
    ) -> Result<oneshot::Receiver<()>, DaemonError>
    where
        F: Fn(Batch) + Send + 'static,
    {
        let (batches, received) = source::channel();
        let (complete, completed) = oneshot::channel();
        let ready = self.readiness.condition("the source to be read");
        if source.dirs.is_empty() {
            let client = cluster::connect(&source.cluster, service)
                .await
                .map_err(DaemonError::Connect)?;
            let cluster = Cluster::new(client, kinds, &self.registry);
            self.supervisor.spawn("source", cluster.run(batches));
        } else {
            let folders = Folders::new(source.dirs, &self.registry);
            self.supervisor.spawn("source", folders.run(batches));
        }
        self.supervisor
            .spawn("index", feed(received, apply, ready, complete));
        Ok(completed)
    }

    fn serve_grpc(&self, listener: TcpListener, router: Router) {
        let drain = self.watch.clone();
        self.supervisor.spawn("gRPC server", async move {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let served = router
                .serve_with_incoming_shutdown(incoming, drain.draining())
                .await;
            if let Err(error) = served {
                tracing::error!(%error, "The gRPC server failed");
            }
        });
    }

    /// Waits for something that has to happen at the start; nothing when the process is told to
    /// stop before.
    async fn unless_ended<T>(
        &mut self,
        happens: impl Future<Output = T>,
    ) -> Result<Option<T>, DaemonError> {
        tokio::select! {
            happened = happens => Ok(Some(happened)),
            ended = self.ends.first() => Err(DaemonError::Died(ended)),
            signal = self.termination.received() => {
                tracing::info!(signal, "Stopped before the start was complete");
                Ok(None)
            }
        }
    }

    /// Waits for a signal and drains, or for the first piece that dies.
    async fn finish(mut self) -> Result<(), DaemonError> {
        tokio::select! {
            signal = self.termination.received() => {
                tracing::info!(signal, "Stopping");
            }
            ended = self.ends.first() => return Err(DaemonError::Died(ended)),
        }
        drop(self.watch);
        match self.drain.drain(DRAIN_GRACE).await {
            Outcome::Complete => tracing::info!("Stopped"),
            Outcome::Expired { remaining } => {
                tracing::warn!(remaining, "Stopped before all calls had ended");
            }
        }
        Ok(())
    }
}

/// Waits for the first complete read, unless the process is to stop or a piece dies before; then
/// `finish` says so.
async fn until_complete(
    daemon: &mut Daemon,
    complete: oneshot::Receiver<()>,
) -> Result<bool, DaemonError> {
    let complete = daemon.unless_ended(complete).await?;
    Ok(matches!(complete, Some(Ok(()))))
}

async fn feed(
    mut batches: mpsc::Receiver<Batch>,
    apply: impl Fn(Batch),
    ready: Condition,
    complete: oneshot::Sender<()>,
) {
    let mut complete = Some(complete);
    while let Some(batch) = batches.recv().await {
        let changes = batch.len();
        apply(batch);
        if let Some(complete) = complete.take() {
            ready.set(true);
            tracing::info!("Read the source");
            // Nobody waits any more when the process is already stopping.
            let _ = complete.send(());
        } else {
            tracing::debug!(changes, "Applied changes");
        }
    }
}

async fn listen(addr: SocketAddr) -> Result<TcpListener, DaemonError> {
    listen_for(addr, "gRPC").await
}

async fn listen_for(addr: SocketAddr, what: &'static str) -> Result<TcpListener, DaemonError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| DaemonError::Listen { addr, what, source })
}

/// Exports how many different values of two kinds are watched.
fn export_watched<I: Send + 'static>(
    registry: &Registry,
    index: &Arc<Mutex<I>>,
    names: [(&'static str, &'static str); 2],
    watched: fn(&I) -> (usize, usize),
) {
    let index = index.clone();
    registry.on_scrape(move |scrape| {
        let (first, second) = watched(&index.lock());
        for ((name, help), value) in names.into_iter().zip([first, second]) {
            scrape.gauge(
                name,
                help,
                &mesh_runtime::metrics::Labels::new(),
                value as f64,
            );
        }
    });
}
