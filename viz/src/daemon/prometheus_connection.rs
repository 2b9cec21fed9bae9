//! The client of Prometheus, for the metrics API and the dashboard.

use mesh_cluster::prometheus::{CredentialFiles, PrometheusClient};
use mesh_runtime::metrics::Registry;

use super::VizError;
use crate::config::Prometheus;

/// Returns a client, which does not connect yet; `None` without a URL. The log then says that
/// `queried` is missing.
pub(super) async fn connect(
    config: &Prometheus,
    queried: &str,
    registry: &Registry,
) -> Result<Option<PrometheusClient>, VizError> {
    if config.url.is_empty() {
        tracing::warn!(missing = queried, "No --prometheus-url");
        return Ok(None);
    }
    let files = config.user_file.clone();
    let credentials = files
        .zip(config.password_file.clone())
        .map(|(user, password)| CredentialFiles { user, password });
    if let Some(files) = &credentials {
        files.check().await.map_err(VizError::Credentials)?;
    }
    PrometheusClient::new(&config.url, credentials, registry)
        .map(Some)
        .map_err(VizError::Prometheus)
}
