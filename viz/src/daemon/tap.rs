//! The tap API.

use std::sync::Arc;

use mesh_cluster::daemon::{CertificateSource, Daemon, DaemonError, MountedFiles, connect, listen};
use mesh_cluster::flags::Source;
use mesh_cluster::source::Received;
use mesh_cluster::source::kube::kinds;
use mesh_cluster::webhook::managed::{Registration, RegistrationKind};
use mesh_core::annotation::{EXTENSION, VIZ};
use mesh_objects::inventory::Inventory;
use mesh_objects::inventory::tap::MeshNames;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::rights;
use crate::config::Tap as Config;
use crate::inventory;
use crate::tap::{self, ApiServerReviewer, CONTROLLER, IgnoredHeaders, MAX_TAPS, TapApi};

pub(super) async fn run(config: Config) -> Result<(), DaemonError> {
    let mut daemon = Daemon::new()?;
    let client = connect(&config.cluster, "mesh-viz tap", rights::tap()).await?;
    let listener = listen(config.apiserver_addr, "the tap API").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let events = daemon.write_events(&client, CONTROLLER);
    let certificate = CertificateSource {
        mounted: config.tls_dir.map(MountedFiles::in_directory),
        namespace: config.viz_namespace,
        cluster_domain: config.cluster_domain,
        service: config.service_name,
        secret: config.tls_secret,
        label: (EXTENSION, VIZ.to_owned()),
        registration: Registration {
            kind: RegistrationKind::ApiService,
            name: config.api_service,
        },
    };
    let serving = certificate.spawn(&daemon, client.clone(), &events);
    let (publish, front_proxy) = watch::channel(None);
    let ready = daemon
        .readiness
        .condition("the API server's way to authenticate itself");
    daemon.supervisor.spawn(
        "front proxy",
        tap::watch_front_proxy(client.clone(), publish, ready),
    );
    let inventory = Arc::new(Mutex::new(Inventory::new()));
    let source = Source {
        dirs: Vec::new(),
        cluster: config.cluster,
    };
    let apply =
        |inventory: &mut Inventory, received: Received| inventory::apply(inventory, received.batch);
    let read = daemon.read_source(
        source,
        ("mesh-viz tap", rights::tap()),
        kinds::TAP,
        &inventory,
        apply,
    );
    if !read.await? {
        return Ok(());
    }
    let api = TapApi {
        inventory,
        access: Box::new(ApiServerReviewer(client)),
        front_proxy: front_proxy.clone(),
        mesh: MeshNames {
            control_namespace: config.controller_namespace,
            trust_domain: config.trust_domain,
            tap_port: Some(config.tap_port),
        },
        ignored: IgnoredHeaders::new(config.ignore_headers),
        taps: Arc::new(Semaphore::new(MAX_TAPS)),
    };
    let served = tap::serve(
        listener,
        serving,
        front_proxy,
        Arc::new(api),
        daemon.watch.clone(),
    );
    daemon.supervisor.spawn("tap API", served);
    tracing::info!(addr = %config.apiserver_addr, "Serving the tap API");
    daemon.run_until_stopped().await
}
