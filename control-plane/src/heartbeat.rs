//! `mesh-controller heartbeat`: sends a report of the installation to a URL that the user chose,
//! and exits. A CronJob of the chart runs it.
//!
//! Every parameter of the report may be missing: if a value cannot be read, this is logged and the
//! value left out. The URL has no default, and the report has only the parameters that
//! `mesh_k8s::heartbeat` lists.

use mesh_cluster::api_server::{self, ConnectError};
use mesh_cluster::prometheus::{PrometheusClient, UrlError};
use mesh_runtime::metrics::Registry;

use self::send::SendError;
use crate::config;

mod gather;
mod send;
mod tls;

pub(crate) use self::gather::rights;

/// Why no report was sent.
#[derive(Debug, thiserror::Error)]
pub enum HeartbeatError {
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("cannot use --prometheus-url")]
    Prometheus(#[source] UrlError),
    #[error("the receiver {url} has not accepted it")]
    Send { url: String, source: SendError },
}

/// Gathers the report and sends it once. The CronJob's Job tries again.
pub(crate) async fn run(config: config::Heartbeat) -> Result<(), HeartbeatError> {
    let prometheus = prometheus(&config.prometheus_url).map_err(HeartbeatError::Prometheus)?;
    let client = api_server::connect(
        &config.cluster,
        "mesh-controller heartbeat",
        rights().collect(),
    )
    .await
    .map_err(HeartbeatError::Connect)?;
    let report = gather::report(&client, prometheus.as_ref(), &config.controller_namespace).await;
    for parameter in report.parameters() {
        if let Err(absence) = &parameter.value {
            tracing::warn!(parameter = parameter.name, reason = %absence, "Left out of the report");
        }
    }
    tracing::info!(url = config.url.with_report(&report), "Sending the report");
    let sent = send::send(&config.url, &report).await;
    sent.map_err(|source| HeartbeatError::Send {
        url: config.url.to_string(),
        source,
    })?;
    tracing::info!("Sent the report");
    Ok(())
}

fn prometheus(url: &str) -> Result<Option<PrometheusClient>, UrlError> {
    if url.is_empty() {
        return Ok(None);
    }
    // The metrics are not served.
    PrometheusClient::new(url, None, &Registry::new()).map(Some)
}
