//! The service mirror.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use mesh_cluster::api_server::LeaseSettings;
use mesh_cluster::daemon::{Daemon, connect};
use mesh_core::units::list_items;
use mesh_runtime::metrics::Labels;
use tokio::sync::watch;

use super::{ControllerError, rights, write_objects};
use crate::config::ServiceMirror;
use crate::mirror::{
    Connections, FIELD_MANAGER, GatewayTask, LinkTask, Mirrors, ProbeTask, Publisher, Reporter,
    Settings, SystemResolver, Target, follow_local,
};

/// How long a write may take, which may be two requests.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn run(config: ServiceMirror) -> Result<(), ControllerError> {
    let daemon = Daemon::new()?;
    daemon.serve_admin(config.metrics_addr).await?;
    for unused in config.unused() {
        let (flag, reason) = (unused.flag, unused.reason);
        tracing::info!(flag, reason, "A flag has no effect");
    }
    match config.link.clone() {
        Some(link) => mirror_link(&daemon, &config, &link).await?,
        None => mirror_local_members(&daemon, &config).await?,
    }
    Ok(daemon.run_until_stopped().await?)
}

/// Mirrors the Services that a Link selects.
async fn mirror_link(
    daemon: &Daemon,
    config: &ServiceMirror,
    link: &str,
) -> Result<(), ControllerError> {
    let resolver = SystemResolver::new().map_err(ControllerError::Resolver)?;
    let rights = rights::service_mirror(config.enable_namespace_creation);
    let client = connect(&config.cluster, PROGRAM, rights).await?;
    let probe_service = Some(&*config.probe_service).filter(|name| !name.is_empty());
    let probe_service: Option<Arc<str>> = probe_service.map(Arc::from);
    let settings = Settings {
        link: Some(link.into()),
        probe_service: probe_service.clone(),
        ..settings(config)
    };
    let (publisher, objects) = Publisher::new(Mirrors::new(settings, None));
    let targets = LinkTask::spawn(daemon, &client, &config.namespace, &publisher);
    follow_local(daemon, &client, &publisher, true);
    let has_hosts = config.enable_headless_services;
    let connections = Connections::new(publisher.clone(), has_hosts, rights::target_cluster());
    let lease = format!("service-mirror-write-{link}");
    write(daemon, &client, config, lease, objects, &connections);
    let namespace = config.namespace.clone();
    let connected = connections.run(client, namespace, targets.clone());
    daemon.supervisor.spawn("target cluster", connected);
    let gateway = GatewayTask::new(
        targets.clone(),
        publisher.clone(),
        resolver.clone(),
        config.endpoint_refresh_period,
        &daemon.registry,
    );
    daemon.supervisor.spawn("gateway", gateway.run());
    let registry = &daemon.registry;
    let probes = ProbeTask::new(targets, publisher, resolver, probe_service, registry);
    daemon.supervisor.spawn("probes", probes.run());
    tracing::info!(link, "Mirroring the Services of a linked cluster");
    Ok(())
}

/// Adds the members of this cluster to federated Services.
async fn mirror_local_members(
    daemon: &Daemon,
    config: &ServiceMirror,
) -> Result<(), ControllerError> {
    let rights = rights::local_service_mirror();
    let client = connect(&config.cluster, PROGRAM, rights).await?;
    let list = |items: &str| list_items(items).map(str::to_owned).collect();
    let target = Target::local(
        config.federated_service_selector.clone(),
        list(&config.excluded_labels),
        list(&config.excluded_annotations),
    );
    let mirrors = Mirrors::new(settings(config), Some(target.clone()));
    let (publisher, objects) = Publisher::new(mirrors);
    follow_local(daemon, &client, &publisher, false);
    let connections = Connections::new(publisher, false, Vec::new());
    let lease = "local-service-mirror-write".to_owned();
    write(daemon, &client, config, lease, objects, &connections);
    let followed = connections.run_local(client, target);
    daemon.supervisor.spawn("members of this cluster", followed);
    tracing::info!("Adding the members of this cluster to federated Services");
    Ok(())
}

const PROGRAM: &str = "mesh-controller service-mirror";

fn settings(config: &ServiceMirror) -> Settings {
    Settings {
        namespace: config.namespace.as_str().into(),
        link: None,
        mirrors_headless: config.enable_headless_services,
        creates_namespaces: config.enable_namespace_creation,
        probe_service: None,
    }
}

/// Starts to write mirrors, and events about Services that are not mirrored.
fn write(
    daemon: &Daemon,
    client: &Client,
    config: &ServiceMirror,
    lease: String,
    objects: watch::Receiver<Arc<Mirrors>>,
    connections: &Connections,
) {
    let lease = LeaseSettings {
        namespace: config.namespace.clone(),
        name: lease,
        owner: None,
        claimant: config.replica.claimant(),
        field_manager: FIELD_MANAGER,
    };
    let counted = objects.clone();
    daemon.registry.on_scrape(move |scrape| {
        let (name, help) = (
            "mesh_service_mirror_services",
            "Services that are mirrored or members of federated Services, by whether they could be",
        );
        let mirrors = counted.borrow().clone();
        for (result, number) in mirrors.results() {
            let labels = Labels::new().with("result", result);
            scrape.gauge(name, help, &labels, number as f64);
        }
    });
    let leadership = write_objects(daemon, client, lease, objects.clone(), WRITE_TIMEOUT);
    let reporter = Reporter::new(objects, leadership, connections, &daemon.registry);
    let drain = daemon.watch.clone();
    daemon.supervisor.spawn("events", reporter.run(drain));
}
