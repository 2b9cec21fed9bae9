//! Finds the viz extension in a cluster.

use kube::api::ListParams;
use mesh_core::annotation;
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;

use super::extension::Extension;
use super::{Cluster, error};
use crate::clients::metrics_api::{self, MetricsApi};
use crate::exit::Failure;
use crate::resource::Scope;

const VIZ: Extension = Extension {
    name: annotation::VIZ,
    flag: "--viz-namespace",
};

/// A part of the extension.
#[derive(Clone, Copy)]
struct Component {
    name: &'static str,
    /// The label of its pods, as in Linkerd.
    label: &'static str,
    /// What to do if it has none; by default, to install the extension.
    instead: Option<&'static str>,
}

const METRICS_API: Component = Component {
    name: "the metrics API",
    label: "component=metrics-api",
    instead: None,
};

const PROMETHEUS: Component = Component {
    name: "Prometheus",
    label: "component=prometheus",
    instead: Some("name the URL of the one that scrapes the proxies with --prometheus-url"),
};

const DASHBOARD: Component = Component {
    name: "the dashboard",
    label: "component=web",
    instead: None,
};

impl Cluster {
    /// Connects to the metrics API. `namespace` is the extension's; `None` finds it by its label.
    pub(crate) async fn metrics_api(&self, namespace: Option<&str>) -> anyhow::Result<MetricsApi> {
        let (namespace, pod) = self.viz_pod(namespace, METRICS_API).await?;
        let port = metrics_api::PORT;
        let connection = self.forward(&namespace, &pod, port).await?;
        let server = format!("the metrics API in pod {namespace}/{pod} at port {port}");
        MetricsApi::new(connection, &server).await
    }

    /// Returns the namespace and the name of a ready pod of the extension's Prometheus.
    pub(crate) async fn prometheus_pod(
        &self,
        namespace: Option<&str>,
    ) -> anyhow::Result<(String, String)> {
        self.viz_pod(namespace, PROMETHEUS).await
    }

    /// Returns the namespace and the name of a ready pod of the dashboard.
    pub(crate) async fn dashboard_pod(
        &self,
        namespace: Option<&str>,
    ) -> anyhow::Result<(String, String)> {
        self.viz_pod(namespace, DASHBOARD).await
    }

    /// Returns the namespace and the name of a ready pod of a component.
    async fn viz_pod(
        &self,
        namespace: Option<&str>,
        component: Component,
    ) -> anyhow::Result<(String, String)> {
        let namespace = match namespace {
            Some(namespace) => namespace.to_owned(),
            None => self.extension_namespace(VIZ).await?,
        };
        let Component {
            name,
            label,
            instead,
        } = component;
        let scope = Scope::Namespace(namespace.clone());
        let params = ListParams::default().labels(label);
        let pods = self.list::<Pod>(&scope, params).await;
        let pods = pods.map_err(|error| error::failed(&format!("find {name}"), error))?;
        let ready = pods
            .iter()
            .find(|it| pod::is_ready(it) && !pod::is_terminal(it));
        match ready {
            Some(pod) => Ok((namespace, pod.name_any())),
            None if pods.is_empty() => {
                let instead = instead.map_or_else(|| VIZ.install(), str::to_owned);
                let text = format!("namespace {namespace} has no pod of {name}: {instead}");
                Err(Failure::Unreachable(text).into())
            }
            None => Err(Failure::Unreachable(format!(
                "no pod of {name} is ready; `kubectl -n {namespace} describe pods -l {label}` shows the reason"
            ))
            .into()),
        }
    }
}
