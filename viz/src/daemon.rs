//! The viz extension: connects the parts of each process, as its command says.

use std::io;

use mesh_api::grpc::TransportError;
use mesh_cluster::daemon::DaemonError;
use mesh_cluster::namespace_metadata::{self, NamespaceMetadataError};
use mesh_cluster::prometheus::UrlError;

use crate::config::Command;

mod metrics_api;
mod prometheus_connection;
mod rights;
mod tap;
mod tap_injector;
mod web;

/// Why a part of the extension did not start, or exited.
#[derive(Debug, thiserror::Error)]
pub enum VizError {
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("cannot mark the namespace of the extension")]
    NamespaceMetadata(#[source] NamespaceMetadataError),
    #[error("cannot use --prometheus-url: {0}")]
    Prometheus(UrlError),
    #[error("cannot use the credentials for Prometheus: {0}")]
    Credentials(String),
    #[error("cannot compress the files of the dashboard")]
    Assets(#[source] io::Error),
    #[error("cannot use --enforced-host: {0}")]
    HostPattern(regex::Error),
    #[error("cannot use --linkerd-metrics-api-addr")]
    MetricsApi(#[source] TransportError),
    #[error("cannot use --policy-addr")]
    PolicyController(#[source] TransportError),
}

/// Runs a part of the extension until a signal arrives.
pub async fn run(command: Command) -> Result<(), VizError> {
    match command {
        // Boxed, because their futures hold several clients.
        Command::MetricsApi(config) => Box::pin(metrics_api::run(config)).await,
        Command::Tap(config) => Ok(Box::pin(tap::run(config)).await?),
        Command::TapInjector(config) => Ok(tap_injector::run(config).await?),
        Command::Web(config) => Box::pin(web::run(config)).await,
        Command::NamespaceMetadata(config) => {
            let program = ("mesh-viz namespace-metadata", rights::namespace_metadata());
            namespace_metadata::run(config, program)
                .await
                .map_err(VizError::NamespaceMetadata)
        }
    }
}
