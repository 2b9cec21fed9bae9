//! The controllers as processes of a simulated world. For mesh-controller-simulator, with the
//! feature `simulation`. Decision: ADR 0210.
//!
//! They are started as [`crate::daemon`] starts them, but for their sockets: the client of the API
//! server is [`mesh_cluster::simulation`]'s, and what a process would serve on a port is handed to
//! the world.

use std::sync::Arc;

use mesh_cluster::daemon::{Daemon, connect};
use mesh_cluster::webhook::Reviewer;
use tonic::service::Routes;

use crate::config::Command;
use crate::daemon::{ControllerError, destination, injector, policy, rights};
use crate::injector::SettingsFiles;

/// What a process serves.
#[derive(Clone)]
pub enum Served {
    /// The gRPC services of the destination or the policy controller.
    Grpc(Routes),
    /// The webhook of the injector.
    Webhook(Arc<dyn Reviewer>),
}

/// The trust anchors that the injector adds to pods. It does not read them.
const TRUST_ANCHORS: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// Runs the destination controller, the policy controller or the injector until its termination.
/// `serve` gets its services when clients could call them.
///
/// # Errors
///
/// The process fails, as outside of a world.
pub async fn run(
    mut daemon: Daemon,
    command: Command,
    serve: impl FnOnce(Served),
) -> Result<(), ControllerError> {
    let served = match command {
        Command::Destination(config) => destination::start(&mut daemon, &config)
            .await?
            .map(Served::Grpc),
        Command::Policy(config) => policy::start(&mut daemon, &config).await?.map(Served::Grpc),
        Command::ProxyInjector(config) => {
            let files = SettingsFiles {
                values: config.values_file,
                trust_anchors: config.trust_anchors,
                namespace: config.controller_namespace,
            };
            let settings = files
                .simulated("{}", TRUST_ANCHORS)
                .map_err(ControllerError::Settings)?;
            let program = "mesh-controller proxy-injector";
            let client = connect(&config.cluster, program, rights::proxy_injector()).await?;
            let (injector, _events) = injector::start(&daemon, &client, settings);
            Some(Served::Webhook(injector))
        }
        // The others do not depend on objects.
        _ => None,
    };
    let Some(served) = served else {
        return Ok(());
    };
    serve(served);
    Ok(daemon.run_until_stopped().await?)
}
