//! What the questions of pages are asked of: the metrics API for statistics, and the policy
//! controller, the API server and Prometheus for what the metrics API does not have.

use std::sync::Arc;

use kube::Client;

use super::client::MetricsClient;
use super::policy_client::PolicyClient;
use crate::metrics_api::PrometheusClient;

/// The servers that know about the mesh. Clones share connections.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) place: Place,
    pub(crate) metrics: MetricsClient,
    pub(crate) cluster: Client,
    pub(crate) policies: PolicyClient,
    /// `None` without `--prometheus-url`.
    pub(crate) prometheus: Option<Arc<PrometheusClient>>,
}

/// Where the mesh runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Cluster,
    /// It has neither webhooks nor an APIService: the node itself adds proxies and taps. It has no
    /// Prometheus.
    LocalNode,
}

impl Sources {
    /// Returns Prometheus, or why there is none.
    pub(super) fn prometheus(&self) -> Result<&PrometheusClient, String> {
        self.prometheus.as_deref().ok_or_else(|| {
            match self.place {
                Place::Cluster => "the dashboard has no Prometheus: --prometheus-url (value prometheusUrl or prometheus.enabled) is not set",
                Place::LocalNode => "a local node has no Prometheus",
            }
            .to_owned()
        })
    }
}
