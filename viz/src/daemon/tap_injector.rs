//! The tap injector.

use std::sync::Arc;

use mesh_cluster::api_server::{self, Events};
use mesh_cluster::daemon::{CertificateSource, Daemon, DaemonError, MountedFiles, listen};
use mesh_cluster::metadata::NamespaceCache;
use mesh_cluster::webhook::managed::{Registration, RegistrationKind};
use mesh_cluster::webhook::{self, ServingCertificate};
use mesh_core::annotation::{EXTENSION, VIZ};

use super::rights;
use crate::config::TapInjector as Config;
use crate::tap_injector::{CONTROLLER, TapInjector, is_tap_annotation};

pub(super) async fn run(config: Config) -> Result<(), DaemonError> {
    let daemon = Daemon::new()?;
    let client = api_server::connect(
        &config.cluster,
        "mesh-viz tap-injector",
        rights::tap_injector(),
    )
    .await
    .map_err(DaemonError::Connect)?;
    let listener = listen(config.addr, "the webhook").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let namespaces = NamespaceCache::start(
        &client,
        &daemon.supervisor,
        &daemon.readiness,
        is_tap_annotation,
    );
    let (events, write_events) = Events::channel(client.clone(), CONTROLLER, &daemon.registry);
    daemon.supervisor.spawn("events", write_events);
    let serving = Arc::new(ServingCertificate::default());
    let certificate = CertificateSource {
        mounted: config.tls_dir.map(MountedFiles::in_directory),
        namespace: config.viz_namespace,
        cluster_domain: config.cluster_domain,
        service: config.service_name,
        secret: config.tls_secret,
        label: (EXTENSION, VIZ.to_owned()),
        registration: Registration {
            kind: RegistrationKind::MutatingWebhook,
            name: config.webhook_config,
        },
    };
    certificate.spawn(&daemon, client, &events, serving.clone());
    let injector = TapInjector::new(namespaces, config.tap_service_name, &daemon.registry);
    let served = webhook::serve(listener, serving, Arc::new(injector), daemon.watch.clone());
    daemon.supervisor.spawn("webhook server", served);
    tracing::info!(addr = %config.addr, "Serving the tap injector's webhook");
    daemon.run_until_stopped().await
}
