//! The controllers: connects the parts of each process, as its command says.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use mesh_cluster::api_server::{Leadership, LeaseSettings, LeaseTask};
use mesh_cluster::daemon::{Daemon, DaemonError};
use mesh_cluster::namespace_metadata::{self, NamespaceMetadataError};
use mesh_runtime::metrics::{Labels, Registry};
use mesh_runtime::signal::Termination;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::bootstrap::{self, BootstrapError};
use crate::config::Command;
use crate::heartbeat::{self, HeartbeatError};
use crate::identity::{AccessError, LoadError};
use crate::injector::SettingsError;
use crate::mirror::ResolveError;
use crate::writer::{Writer, Written};

pub(crate) mod destination;
mod identity;
pub(crate) mod injector;
pub(crate) mod policy;
pub(crate) mod rights;
mod service_mirror;
mod validator;

/// The component of the control plane that the destination and policy controllers are parts of.
const COMPONENT: &str = "destination";

/// Why a controller did not start, or exited.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("{0}")]
    Access(AccessError),
    #[error("cannot create the certificates of the mesh")]
    Bootstrap(#[source] BootstrapError),
    #[error("cannot send a report of the installation")]
    Heartbeat(#[source] HeartbeatError),
    #[error("cannot start the injector")]
    Settings(#[source] SettingsError),
    #[error("cannot start the identity service")]
    Identity(#[source] LoadError),
    #[error("cannot mark the namespace of the extension")]
    NamespaceMetadata(#[source] NamespaceMetadataError),
    #[error("cannot start the service mirror")]
    Resolver(#[source] ResolveError),
    #[error("{0} is not a valid name of a {1}")]
    Name(String, &'static str),
    #[error("--trust-bundle-addr needs --publish-trust-roots, without which there is no bundle")]
    NoTrustBundle,
}

/// Runs a controller until a signal arrives.
pub async fn run(command: Command) -> Result<(), ControllerError> {
    match command {
        // Boxed, because its future holds several clients.
        Command::Identity(config) => Box::pin(identity::run(config)).await,
        Command::Destination(config) => Ok(destination::run(config).await?),
        Command::Policy(config) => Ok(policy::run(config).await?),
        Command::ProxyInjector(config) => injector::run(config).await,
        Command::SpValidator(config) => Ok(validator::run(config).await?),
        Command::Bootstrap(config) => bootstrap::run(config)
            .await
            .map_err(ControllerError::Bootstrap),
        Command::Heartbeat(config) => Box::pin(heartbeat::run(config))
            .await
            .map_err(ControllerError::Heartbeat),
        Command::ServiceMirror(config) => service_mirror::run(config).await,
        Command::NamespaceMetadata(config) => {
            let rights = rights::namespace_metadata();
            let program = ("mesh-controller namespace-metadata", rights);
            namespace_metadata::run(config, program)
                .await
                .map_err(ControllerError::NamespaceMetadata)
        }
        Command::Pause(_) => Ok(pause().await?),
    }
}

/// Waits for a signal.
async fn pause() -> Result<(), DaemonError> {
    let mut termination = Termination::listen().map_err(DaemonError::Signals)?;
    tracing::info!("Waiting for a signal");
    let signal = termination.received().await;
    tracing::info!(signal, "Exiting");
    Ok(())
}

/// Exports the numbers of watched values of two kinds.
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
            scrape.gauge(name, help, &Labels::new(), value as f64);
        }
    });
}

/// Starts to write objects while this process holds a Lease, and returns whether it does.
fn write_objects<O: Written>(
    daemon: &Daemon,
    client: &Client,
    lease: LeaseSettings,
    objects: watch::Receiver<Arc<O>>,
    timeout: Duration,
) -> Leadership {
    let registry = &daemon.registry;
    let (lease, leadership) = LeaseTask::new(client, lease, registry);
    let held = leadership.clone();
    let writer = Writer::new(client.clone(), objects, held, timeout, registry);
    let (drain, supervisor) = (&daemon.watch, &daemon.supervisor);
    supervisor.spawn("lease of the writer", lease.run(drain.clone()));
    supervisor.spawn("writer", writer.run(drain.clone()));
    leadership
}
