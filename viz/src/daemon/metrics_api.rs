//! The metrics API of the viz extension.

use std::sync::Arc;

use mesh_api::linkerd2::viz::api_server::ApiServer;
use mesh_cluster::daemon::{Daemon, listen};
use mesh_cluster::source::kube::kinds;
use mesh_objects::inventory::Inventory;
use mesh_runtime::metrics::{Labels, Registry};
use parking_lot::Mutex;
use tonic::service::Routes;

use super::{VizError, prometheus_connection, rights};
use crate::config::MetricsApi;
use crate::inventory;
use crate::metrics::{MetricsSource, ProxyMetrics};
use crate::metrics_api::{MetricsApiService, MetricsApiSettings};

pub(super) async fn run(config: MetricsApi) -> Result<(), VizError> {
    let mut daemon = Daemon::new()?;
    let source = source(&config, &daemon.registry).await?;
    let listener = listen(config.addr, "gRPC").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let inventory = Arc::new(Mutex::new(Inventory::new()));
    export_objects(&daemon.registry, &inventory);
    let objects = if config.source.dirs.is_empty() {
        "Kubernetes"
    } else {
        "its directories of manifests"
    };
    let complete = daemon.read_source(
        config.source,
        ("mesh-viz metrics-api", rights::metrics_api()),
        kinds::METRICS_API,
        &inventory,
        |inventory: &mut Inventory, received| inventory::apply(inventory, received.batch),
    );
    if !complete.await? {
        return Ok(());
    }
    if let Some(MetricsSource::Proxies(proxies)) = &source {
        let control_namespace = config.controller_namespace.clone();
        let scrapes = proxies.clone().run(inventory.clone(), control_namespace);
        daemon.supervisor.spawn("scrapes", scrapes);
    }
    let settings = MetricsApiSettings {
        cluster_domain: config.cluster_domain,
        control_namespace: config.controller_namespace,
        ignored_namespaces: config.ignore_namespaces,
        objects,
    };
    let service = MetricsApiService::new(inventory, source, settings, &daemon.calls);
    let services = Routes::new(ApiServer::new(service));
    daemon.serve_grpc(listener, services);
    tracing::info!(addr = %config.addr, "Serving metrics");
    Ok(daemon.run_until_stopped().await?)
}

async fn source(
    config: &MetricsApi,
    registry: &Registry,
) -> Result<Option<MetricsSource>, VizError> {
    if config.scrape_proxies {
        return Ok(Some(MetricsSource::Proxies(ProxyMetrics::new(registry))));
    }
    let connected = prometheus_connection::connect(&config.prometheus, "statistics", registry);
    let client = connected.await?;
    Ok(client.map(|client| MetricsSource::Prometheus(Box::new(client))))
}

fn export_objects(registry: &Registry, inventory: &Arc<Mutex<Inventory>>) {
    let inventory = inventory.clone();
    registry.on_scrape(move |scrape| {
        scrape.gauge(
            "mesh_metrics_api_objects",
            "Objects that the metrics API can show",
            &Labels::new(),
            inventory.lock().len() as f64,
        );
    });
}
