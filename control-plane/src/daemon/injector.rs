//! The proxy injector.

use std::sync::Arc;

use super::{Daemon, DaemonError, listen_for};
use crate::{
    cluster::{self, Events},
    config::ProxyInjector,
    injector::{CONTROLLER, Caches, Injector, SettingsFiles},
    webhook::{
        self, Serving,
        managed::{self, Expiry, Managed, Repairs},
        mounted::Mounted,
    },
};

pub(super) async fn run(config: ProxyInjector) -> Result<(), DaemonError> {
    let daemon = Daemon::new()?;
    let files = SettingsFiles {
        values: config.values_file.clone(),
        trust_anchors: config.trust_anchors.clone(),
        namespace: config.controller_namespace.clone(),
    };
    let (settings, contents) = files.load().map_err(DaemonError::Settings)?;
    let client = cluster::connect(&config.cluster, "proxy-injector")
        .await
        .map_err(DaemonError::Connect)?;
    let listener = listen_for(config.addr, "the webhook").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    daemon.supervisor.spawn(
        "settings",
        files.follow(contents, settings.clone(), daemon.registry.clone()),
    );
    let caches = Caches::follow(&client, &daemon.supervisor, &daemon.readiness);
    let (events, write_events) = Events::of(client.clone(), CONTROLLER, &daemon.registry);
    daemon.supervisor.spawn("events", write_events);
    let serving = Arc::new(Serving::default());
    keep_certificate(&daemon, &config, client, &events, serving.clone());

    let injector = Arc::new(Injector::new(settings, caches, events, &daemon.registry));
    let served = webhook::serve(listener, serving, injector, daemon.watch.clone());
    daemon.supervisor.spawn("webhook server", served);
    tracing::info!(addr = %config.addr, "Serving the injector's webhook");
    daemon.finish().await
}

/// The certificate comes from a folder when one is given; otherwise the injector makes it.
fn keep_certificate(
    daemon: &Daemon,
    config: &ProxyInjector,
    client: kube::Client,
    events: &Events,
    serving: Arc<Serving>,
) {
    let expiry = Expiry::export(&daemon.registry);
    let ready = daemon
        .readiness
        .condition("a certificate that the API server trusts");
    match &config.tls_dir {
        Some(dir) => {
            let mounted = Mounted { dir: dir.clone() };
            daemon
                .supervisor
                .spawn("certificate", mounted.run(serving, expiry, ready));
        }
        None => {
            let host = format!(
                "{}.{}.svc",
                config.service_name, config.controller_namespace
            );
            let managed = Managed {
                client,
                namespace: config.controller_namespace.clone(),
                secret: config.tls_secret.clone(),
                hook: managed::mutating(),
                configuration: config.webhook_config.clone(),
                names: vec![host.clone(), format!("{host}.{}", config.cluster_domain)],
                repairs: Repairs::new(events.clone(), &daemon.registry),
            };
            daemon
                .supervisor
                .spawn("certificate", managed.run(serving, expiry, ready));
        }
    }
}
