//! The destination controller.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use mesh_cluster::api_server::{LeaseOwner, LeaseSettings};
use mesh_cluster::daemon::{Daemon, DaemonError, connect, listen};
use mesh_cluster::source::Received;
use mesh_cluster::source::kube::kinds;
use mesh_core::endpoint::Http2Params;
use mesh_core::identity::trust_domain;
use mesh_runtime::metrics::Labels;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::service::Routes;

use super::{COMPONENT, export_watched, rights, write_objects};
use crate::config::{Destination, TransportMode};
use crate::external_slices::ExternalSlices;
use crate::index::{DestinationIndex, DestinationSettings};
use crate::remote::{ClusterWatch, Clusters};
use crate::serve::{DestinationService, GrpcServer};

/// The Lease of the replica that writes EndpointSlices, as in Linkerd.
const LEASE: &str = "linkerd-destination-endpoint-write";

/// The Deployment of the destination controller, which owns the Lease.
const DEPLOYMENT: &str = "linkerd-destination";

/// How long a write of a slice may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

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
    // Slices in directories are complete as they are.
    let writes_slices = config.source.dirs.is_empty();
    let (slices, objects) = watch::channel(Arc::<ExternalSlices>::default());
    let apply = move |index: &mut DestinationIndex, received: Received| {
        if writes_slices && ExternalSlices::may_depend_on(&received.batch) {
            slices.send_modify(|slices| Arc::make_mut(slices).apply(&received.batch));
        }
        index.apply_received(received);
    };
    let rights = rights::destination(config.linked_clusters);
    let read = daemon.read_source(
        config.source.clone(),
        ("mesh-controller destination", rights.clone()),
        kinds::DESTINATION,
        &index,
        apply,
    );
    if !read.await? {
        return Ok(None);
    }
    let clusters = Clusters::default();
    if writes_slices {
        let client = connect(
            &config.source.cluster,
            "mesh-controller destination",
            rights,
        );
        let client = client.await?;
        write_slices(daemon, &client, config, objects);
        if config.linked_clusters {
            follow_clusters(daemon, client, config, &clusters);
        }
    }
    let calls = daemon.calls.clone().limited(config.max_streams);
    let service = DestinationService::new(index, daemon.watch.clone(), &calls);
    let service = service.with_clusters(clusters);
    Ok(Some(Routes::new(GrpcServer::new(service))))
}

/// Starts the writer of ExternalWorkloads' EndpointSlices. The objects are complete at this time,
/// so that no slice is deleted because its Service has not been read yet.
fn write_slices(
    daemon: &Daemon,
    client: &Client,
    config: &Destination,
    objects: watch::Receiver<Arc<ExternalSlices>>,
) {
    let lease = LeaseSettings {
        namespace: config.controller_namespace.clone(),
        name: LEASE.to_owned(),
        owner: Some(LeaseOwner {
            component: COMPONENT,
            deployment: DEPLOYMENT.to_owned(),
        }),
        claimant: config.replica.claimant(),
        field_manager: "destination",
    };
    write_objects(daemon, client, lease, objects, WRITE_TIMEOUT);
}

/// Starts to follow the linked clusters. Nothing waits for them: one that cannot be reached would
/// keep this cluster's endpoints from its clients.
fn follow_clusters(daemon: &Daemon, client: Client, config: &Destination, clusters: &Clusters) {
    let namespace = config.controller_namespace.clone();
    let watch = ClusterWatch::new(client, namespace, settings(config), clusters.clone());
    daemon.supervisor.spawn("links", watch.run());
    let clusters = clusters.clone();
    daemon.registry.on_scrape(move |scrape| {
        let (name, help) = (
            "cluster_store_size",
            "Linked clusters whose objects are known",
        );
        scrape.gauge(name, help, &Labels::new(), clusters.len() as f64);
    });
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
        cluster: None,
    }
}
