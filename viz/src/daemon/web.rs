//! The dashboard.

use std::sync::Arc;

use mesh_cluster::daemon::{Daemon, connect, listen};
use mesh_cluster::flags::Source;
use mesh_cluster::source::kube::kinds;
use mesh_objects::inventory::Inventory;
use parking_lot::Mutex;

use super::{VizError, prometheus_connection, rights};
use crate::config::Web as Config;
use crate::inventory;
use crate::metrics::{MetricsSource, ProxyMetrics};
use crate::web::{
    self, Assets, Checker, Dashboard, Feeds, Limits, MetricsClient, PageSettings, Place,
    PolicyClient, Sources,
};

/// The data that the dashboard itself queries. The metrics API has statistics.
const QUERIED: &str = "certificates, redirection tiers and the load of endpoints";

pub(super) async fn run(config: Config) -> Result<(), VizError> {
    let mut daemon = Daemon::new()?;
    let hosts = config.host_pattern().map_err(VizError::HostPattern)?;
    let metrics_api = config.metrics_api();
    let metrics = MetricsClient::new(&metrics_api).map_err(VizError::MetricsApi)?;
    let policies = PolicyClient::new(&config.policy()).map_err(VizError::PolicyController)?;
    let assets = Assets::new().map_err(VizError::Assets)?;
    let client = connect(&config.cluster, "mesh-viz web", rights::web()).await?;
    let listener = listen(config.addr, "the dashboard").await?;
    daemon.serve_admin(config.metrics_addr).await?;
    let queried = if config.scrape_proxies {
        match scrape(&mut daemon, &config).await? {
            Some(proxies) => Some(MetricsSource::Proxies(proxies)),
            None => return Ok(()),
        }
    } else {
        let (flags, registry) = (&config.prometheus, &daemon.registry);
        let connected = prometheus_connection::connect(flags, QUERIED, registry).await?;
        connected.map(|client| MetricsSource::Prometheus(Box::new(client)))
    };
    let place = if config.local_node {
        Place::LocalNode
    } else {
        Place::Cluster
    };
    let sources = Sources {
        metrics,
        cluster: client.clone(),
        policies,
        place,
        queried: queried.map(Arc::new),
    };
    let feeds = Feeds::new(sources, &daemon.registry);
    let settings = PageSettings {
        controller_namespace: config.controller_namespace,
        viz_namespace: config.viz_namespace,
        cluster_domain: config.cluster_domain,
        grafana: config.grafana_external_addr,
        grafana_prefix: config.grafana_prefix,
        definitions: !config.hide_definitions,
    };
    let dashboard = Dashboard {
        assets,
        checker: Checker::new(client.clone(), feeds.clone(), place, &settings),
        feeds,
        client,
        hosts,
        settings,
        drain: daemon.watch.clone(),
        limits: Limits::new(&daemon.registry),
    };
    let served = web::serve(listener, Arc::new(dashboard), daemon.watch.clone());
    daemon.supervisor.spawn("dashboard", served);
    tracing::info!(addr = %config.addr, metrics_api, "Serving the dashboard");
    Ok(daemon.run_until_stopped().await?)
}

/// Starts to scrape the proxies of the pods in directories; `None` if a signal arrives first.
async fn scrape(daemon: &mut Daemon, config: &Config) -> Result<Option<ProxyMetrics>, VizError> {
    let source = Source {
        dirs: config.source_dirs.clone(),
        cluster: config.cluster.clone(),
    };
    let inventory = Arc::new(Mutex::new(Inventory::new()));
    let complete = daemon.read_source(
        source,
        ("mesh-viz web", rights::web()),
        kinds::METRICS_API,
        &inventory,
        |inventory: &mut Inventory, received| inventory::apply(inventory, received.batch),
    );
    if !complete.await? {
        return Ok(None);
    }
    let proxies = ProxyMetrics::new(&daemon.registry);
    let namespace = config.controller_namespace.clone();
    let scrapes = proxies.clone().run(inventory, namespace);
    daemon.supervisor.spawn("scrapes", scrapes);
    Ok(Some(proxies))
}
