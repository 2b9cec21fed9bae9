//! The destination controller.

use std::sync::Arc;

use mesh_cluster::daemon::{Daemon, DaemonError, listen};
use mesh_cluster::source::kube::kinds;
use mesh_core::endpoint::Http2Params;
use mesh_core::identity::trust_domain;
use parking_lot::Mutex;
use tonic::service::Routes;

use super::{export_watched, rights};
use crate::config::{Destination, TransportMode};
use crate::index::{DestinationIndex, DestinationSettings};
use crate::serve::{DestinationService, GrpcServer};

pub(super) async fn run(config: Destination) -> Result<(), DaemonError> {
    let mut daemon = Daemon::new()?;
    let listener = listen(config.addr, "gRPC").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let Some(services) = start(&mut daemon, &config).await? else {
        return Ok(());
    };
    daemon.serve_grpc(listener, services);
    tracing::info!(addr = %config.addr, "Serving destinations");
    daemon.run_until_stopped().await
}

/// Reads the source, and returns the services for its objects; `None` if a signal arrives first.
pub(crate) async fn start(
    daemon: &mut Daemon,
    config: &Destination,
) -> Result<Option<Routes>, DaemonError> {
    let index = Arc::new(Mutex::new(DestinationIndex::new(settings(config))));
    export_watched(
        &daemon.registry,
        &index,
        [
            (
                "endpoints_watched",
                "Distinct sets of endpoints that proxies watch",
            ),
            ("profiles_watched", "Distinct profiles that proxies watch"),
        ],
        DestinationIndex::watched,
    );
    let (kinds, apply) = (kinds::DESTINATION, DestinationIndex::apply_received);
    let read = daemon.read_source(
        config.source.clone(),
        ("mesh-controller destination", rights::destination()),
        kinds,
        &index,
        apply,
    );
    if !read.await? {
        return Ok(None);
    }
    let calls = daemon.calls.clone().limited(config.max_streams);
    let service = DestinationService::new(index, daemon.watch.clone(), &calls);
    Ok(Some(Routes::new(GrpcServer::new(service))))
}

fn settings(config: &Destination) -> DestinationSettings {
    let http2 = config.meshed_http2_client_params.0;
    let trust_domain = trust_domain(&config.identity_trust_domain, &config.cluster_domain);
    DestinationSettings {
        cluster_domain: config.cluster_domain.as_str().into(),
        control_namespace: config.controller_namespace.as_str().into(),
        trust_domain: Some(trust_domain.into()),
        default_opaque_ports: config.default_opaque_ports.clone(),
        h2_upgrade: config.enable_h2_upgrade,
        transport_header: config.outbound_transport_mode == TransportMode::TransportHeader,
        ipv6: config.enable_ipv6,
        meshed_http2_params: (http2 != Http2Params::default()).then_some(http2),
    }
}
