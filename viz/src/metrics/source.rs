//! Where the metrics API gets metrics from.

use mesh_cluster::prometheus::{PrometheusClient, QueryError, Sample};

use super::proxies::{self, ProxyMetrics};
use super::query::{Query, TimeWindow};

#[derive(Debug)]
pub enum MetricsSource {
    /// A Prometheus, which scrapes the proxies.
    Prometheus(Box<PrometheusClient>),
    /// Scrapes of this process, where there is no Prometheus.
    Proxies(ProxyMetrics),
}

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Prometheus(QueryError),
    #[error(transparent)]
    Proxies(proxies::QueryError),
}

impl MetricsSource {
    /// Evaluates an instant query.
    pub async fn query(&self, query: &Query) -> Result<Vec<Sample>, SourceError> {
        match self {
            Self::Prometheus(client) => {
                let result = client.query(&query.to_string()).await;
                result.map_err(SourceError::Prometheus)
            }
            Self::Proxies(proxies) => proxies.query(query).map_err(SourceError::Proxies),
        }
    }

    /// Checks that results for the window are not necessarily empty.
    pub async fn check_window(&self, window: &TimeWindow) -> Result<(), String> {
        match self {
            Self::Prometheus(client) => match client.scrape_interval().await {
                Some(interval) => window.check_interval(&interval),
                None => Ok(()),
            },
            Self::Proxies(_) => proxies::check_window(window).map_err(|error| error.to_string()),
        }
    }
}
