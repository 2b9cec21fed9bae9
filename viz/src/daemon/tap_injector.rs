//! The tap injector.

use std::sync::Arc;

use mesh_cluster::daemon::{CertificateSource, Daemon, DaemonError, MountedFiles, connect, listen};
use mesh_cluster::metadata::NamespaceCache;
use mesh_cluster::webhook::managed::{Registration, RegistrationKind};
use mesh_core::annotation::{EXTENSION, VIZ};

use super::rights;
use crate::config::TapInjector as Config;
use crate::tap_injector::{CONTROLLER, TapInjector, is_tap_annotation};

pub(super) async fn run(config: Config) -> Result<(), DaemonError> {
    let daemon = Daemon::new()?;
    let client = connect(
        &config.cluster,
        "mesh-viz tap-injector",
        rights::tap_injector(),
    )
    .await?;
    let listener = listen(config.addr, "the webhook").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let namespaces = NamespaceCache::start(
        &client,
        &daemon.supervisor,
        &daemon.readiness,
        is_tap_annotation,
    );
    let events = daemon.write_events(&client, CONTROLLER);
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
    let serving = certificate.spawn(&daemon, client, &events);
    let injector = TapInjector::new(namespaces, config.tap_service_name, &daemon.registry);
    daemon.serve_webhook(listener, serving, Arc::new(injector));
    tracing::info!(addr = %config.addr, "Serving the tap injector's webhook");
    daemon.run_until_stopped().await
}
