//! The sources that answer the questions of pages: the metrics API for statistics; for other data
//! the policy controller, the API server, and Prometheus or scrapes of the proxies.

use std::sync::Arc;

use kube::Client;

use super::client::MetricsClient;
use super::policy_client::PolicyClient;
use crate::metrics::MetricsSource;

/// The servers that know about the mesh. Clones share connections.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) metrics: MetricsClient,
    pub(crate) cluster: Client,
    pub(crate) policies: PolicyClient,
    pub(crate) place: Place,
    /// `None` without `--prometheus-url` and `--scrape-proxies`.
    pub(crate) queried: Option<Arc<MetricsSource>>,
}

/// Where the mesh runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Cluster,
    /// It has neither webhooks nor an APIService: the node itself adds proxies and taps.
    LocalNode,
}

impl Sources {
    /// Returns the source of metrics, or why there is none.
    pub(super) fn queried(&self) -> Result<&MetricsSource, String> {
        self.queried.as_deref().ok_or_else(|| {
            "the dashboard has no Prometheus: --prometheus-url (value prometheusUrl or prometheus.enabled) is not set"
                .to_owned()
        })
    }
}
