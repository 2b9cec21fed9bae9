//! The proxy injector.

use std::sync::Arc;

use mesh_cluster::api_server::{self, Events};
use mesh_cluster::daemon::{CertificateSource, Daemon, DaemonError, MountedFiles, listen};
use mesh_cluster::webhook::managed::{Registration, RegistrationKind};
use mesh_cluster::webhook::{self, ServingCertificate};
use mesh_core::annotation::CONTROL_PLANE_NS;

use super::{ControllerError, rights};
use crate::config::ProxyInjector;
use crate::injector::{CONTROLLER, Caches, Injector, SettingsFiles};

pub(super) async fn run(config: ProxyInjector) -> Result<(), ControllerError> {
    let daemon = Daemon::new()?;
    let files = SettingsFiles {
        values: config.values_file.clone(),
        trust_anchors: config.trust_anchors.clone(),
        namespace: config.controller_namespace.clone(),
    };
    let (settings, contents) = files.load().map_err(ControllerError::Settings)?;
    let client = api_server::connect(
        &config.cluster,
        "mesh-controller proxy-injector",
        rights::proxy_injector(),
    )
    .await
    .map_err(DaemonError::Connect)?;
    let listener = listen(config.addr, "the webhook").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    daemon.supervisor.spawn(
        "settings",
        files.watch(contents, settings.clone(), daemon.registry.clone()),
    );
    let caches = Caches::start(&client, &daemon.supervisor, &daemon.readiness);
    let (events, write_events) = Events::channel(client.clone(), CONTROLLER, &daemon.registry);
    daemon.supervisor.spawn("events", write_events);
    let serving = Arc::new(ServingCertificate::default());
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
    certificate.spawn(&daemon, client, &events, serving.clone());

    let injector = Arc::new(Injector::new(settings, caches, events, &daemon.registry));
    let result = webhook::serve(listener, serving, injector, daemon.watch.clone());
    daemon.supervisor.spawn("webhook server", result);
    tracing::info!(addr = %config.addr, "Serving the injector's webhook");
    Ok(daemon.run_until_stopped().await?)
}
