//! The proxy injector.

use std::sync::Arc;

use kube::Client;
use mesh_cluster::api_server::Events;
use mesh_cluster::daemon::{CertificateSource, Daemon, MountedFiles, connect, listen};
use mesh_cluster::webhook::managed::{Registration, RegistrationKind};
use mesh_core::annotation::CONTROL_PLANE_NS;

use super::{ControllerError, rights};
use crate::config::ProxyInjector;
use crate::injector::{CONTROLLER, Caches, Injector, Settings, SettingsFiles};

pub(super) async fn run(config: ProxyInjector) -> Result<(), ControllerError> {
    let daemon = Daemon::new()?;
    let files = SettingsFiles {
        values: config.values_file.clone(),
        trust_anchors: config.trust_anchors.clone(),
        namespace: config.controller_namespace.clone(),
    };
    let (settings, contents) = files.load().map_err(ControllerError::Settings)?;
    let client = connect(
        &config.cluster,
        "mesh-controller proxy-injector",
        rights::proxy_injector(),
    )
    .await?;
    let listener = listen(config.addr, "the webhook").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    daemon.supervisor.spawn(
        "settings",
        files.watch(contents, settings.clone(), daemon.registry.clone()),
    );
    let (injector, events) = start(&daemon, &client, settings);
    let certificate = CertificateSource {
        mounted: config.tls_dir.map(MountedFiles::in_directory),
        namespace: config.controller_namespace.clone(),
        cluster_domain: config.cluster_domain,
        service: config.service_name,
        secret: config.tls_secret,
        label: (CONTROL_PLANE_NS, config.controller_namespace),
        registration: Registration {
            kind: RegistrationKind::MutatingWebhook,
            name: config.webhook_config,
        },
    };
    let serving = certificate.spawn(&daemon, client, &events);
    daemon.serve_webhook(listener, serving, injector);
    tracing::info!(addr = %config.addr, "Serving the injector's webhook");
    Ok(daemon.run_until_stopped().await?)
}

/// Starts the caches and the writer of events, and returns what reviews objects.
pub(crate) fn start(
    daemon: &Daemon,
    client: &Client,
    settings: Arc<Settings>,
) -> (Arc<Injector>, Events) {
    let caches = Caches::start(client, &daemon.supervisor, &daemon.readiness);
    let events = daemon.write_events(client, CONTROLLER);
    let injector = Injector::new(settings, caches, events.clone(), &daemon.registry);
    (Arc::new(injector), events)
}
