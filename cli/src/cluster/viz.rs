//! Finds the viz extension in a cluster.

use kube::api::ListParams;
use mesh_k8s::kinds::{Namespace, Pod, ResourceExt};
use mesh_k8s::pod;

use super::{Cluster, error};
use crate::clients::metrics_api::{self, MetricsApi};
use crate::exit::Failure;
use crate::resource::Scope;

/// The label of the extension's namespace, as in Linkerd.
const EXTENSION: &str = "linkerd.io/extension=viz";

/// A part of the extension.
#[derive(Clone, Copy)]
struct Component {
    name: &'static str,
    /// The label of its pods, as in Linkerd.
    label: &'static str,
    /// What to do if it has none.
    instead: &'static str,
}

const METRICS_API: Component = Component {
    name: "the metrics API",
    label: "component=metrics-api",
    instead: INSTALL,
};

const PROMETHEUS: Component = Component {
    name: "Prometheus",
    label: "component=prometheus",
    instead: "name the URL of the one that scrapes the proxies with --prometheus-url",
};

const DASHBOARD: Component = Component {
    name: "the dashboard",
    label: "component=web",
    instead: INSTALL,
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

    async fn viz_namespace(&self) -> anyhow::Result<String> {
        let params = ListParams::default().labels(EXTENSION);
        let api = kube::Api::<Namespace>::all(self.client.clone());
        let found = api.list(&params).await.map_err(|error| {
            let what = "find the namespace of the viz extension (--viz-namespace names it)";
            error::failed(what, error)
        })?;
        let names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
        Ok(only_namespace(names)?)
    }

    /// Returns the namespace and the name of a ready pod of a component.
    async fn viz_pod(
        &self,
        namespace: Option<&str>,
        component: Component,
    ) -> anyhow::Result<(String, String)> {
        let namespace = match namespace {
            Some(namespace) => namespace.to_owned(),
            None => self.viz_namespace().await?,
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
            None if pods.is_empty() => Err(Failure::Unreachable(format!(
                "namespace {namespace} has no pod of {name}: {instead}"
            ))
            .into()),
            None => Err(Failure::Unreachable(format!(
                "no pod of {name} is ready; `kubectl -n {namespace} describe pods -l {label}` shows the reason"
            ))
            .into()),
        }
    }
}

const INSTALL: &str = "install it with `meshctl viz install | kubectl apply -f -`, or name its namespace with --viz-namespace";

/// Returns the namespace of the extension. A cluster has only one extension.
fn only_namespace(mut names: Vec<String>) -> Result<String, Failure> {
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        (None, _) => Err(Failure::Unreachable(format!(
            "the viz extension is not installed (no namespace has the label {EXTENSION}): {INSTALL}"
        ))),
        (Some(last), false) => {
            names.push(last);
            Err(Failure::Input(format!(
                "several namespaces have the label {EXTENSION} ({}): select one with --viz-namespace",
                names.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_is_in_one_namespace() {
        let find = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            only_namespace(names.collect())
        };
        assert_eq!(find(&["linkerd-viz"]).unwrap(), "linkerd-viz");
        let missing = find(&[]).unwrap_err().to_string();
        assert!(
            missing.contains("meshctl viz install | kubectl apply -f -"),
            "{missing}"
        );
        let several = find(&["a", "b"]).unwrap_err().to_string();
        assert!(several.contains("(a, b): select one"), "{several}");
    }
}
