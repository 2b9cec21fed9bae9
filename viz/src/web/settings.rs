//! The flags that the page has to know.

use serde_json::{Value, json};

/// The values of flags that the page shows.
#[derive(Clone, Debug)]
pub(crate) struct PageSettings {
    pub(crate) controller_namespace: String,
    pub(crate) viz_namespace: String,
    pub(crate) cluster_domain: String,
    /// The URL of Grafana, if there is one.
    pub(crate) grafana: Option<String>,
    pub(crate) grafana_prefix: String,
    /// Whether definitions of workloads are shown.
    pub(crate) definitions: bool,
}

impl PageSettings {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "controllerNamespace": self.controller_namespace,
            "vizNamespace": self.viz_namespace,
            "grafanaUrl": self.grafana,
            "grafanaPrefix": self.grafana_prefix,
            "definitions": self.definitions,
        })
    }
}
