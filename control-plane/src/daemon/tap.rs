//! The tap API.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::{Daemon, DaemonError, listen};
use crate::cluster;
use crate::config::{Source, Tap as Config};
use crate::index::Inventory;
use crate::source::kube::kinds;
use crate::tap::{self, ApiServerReviewer, IgnoredHeaders, MAX_TAPS, MeshNames, TapApi};
use crate::webhook::ServingCertificate;
use crate::webhook::managed::Expiry;
use crate::webhook::mounted::MountedCertificate;

pub(super) async fn run(config: Config) -> Result<(), DaemonError> {
    let mut daemon = Daemon::new()?;
    let client = cluster::connect(&config.cluster, "tap")
        .await
        .map_err(DaemonError::Connect)?;
    let listener = listen(config.apiserver_addr, "the tap API").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let serving = Arc::new(ServingCertificate::default());
    let ready = daemon.readiness.condition("a certificate of the tap API");
    let certificate = MountedCertificate {
        dir: config.tls_dir,
    };
    let expiry = Expiry::export(&daemon.registry);
    daemon.supervisor.spawn(
        "certificate",
        certificate.run(serving.clone(), expiry, ready),
    );
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
    let read = daemon.read_source(source, "tap", kinds::TAP, &inventory, Inventory::apply);
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
            tap_port: config.tap_port,
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
