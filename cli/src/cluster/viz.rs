//! Finds the viz extension in a cluster.

use kube::api::ListParams;
use mesh_k8s::kinds::{Namespace, Pod, ResourceExt};
use mesh_k8s::pod;

use super::{Cluster, error};
use crate::clients::metrics_api::{self, MetricsApi};
use crate::exit::Failure;
use crate::mesh::scope::Scope;

/// The label of the extension's namespace, as in Linkerd.
const EXTENSION: &str = "linkerd.io/extension=viz";

/// The label of the pods that serve the metrics API.
const METRICS_API: &str = "component=metrics-api";

impl Cluster {
    /// Connects to the metrics API. `namespace` is that of the extension; `None` finds it by its
    /// label.
    pub(crate) async fn metrics_api(&self, namespace: Option<&str>) -> anyhow::Result<MetricsApi> {
        let namespace = match namespace {
            Some(namespace) => namespace.to_owned(),
            None => self.viz_namespace().await?,
        };
        let pod = self.metrics_api_pod(&namespace).await?;
        let port = metrics_api::PORT;
        let connection = self.forward(&namespace, &pod, port).await?;
        let server = format!("the metrics API in pod {namespace}/{pod} at port {port}");
        MetricsApi::new(connection, &server).await
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

    async fn metrics_api_pod(&self, namespace: &str) -> anyhow::Result<String> {
        let scope = Scope::Namespace(namespace.to_owned());
        let params = ListParams::default().labels(METRICS_API);
        let pods = self.list::<Pod>(&scope, params).await;
        let pods = pods.map_err(|error| error::failed("find the metrics API", error))?;
        let ready = pods
            .iter()
            .find(|it| pod::is_ready(it) && !pod::is_terminal(it));
        match ready {
            Some(pod) => Ok(pod.name_any()),
            None if pods.is_empty() => Err(Failure::Unreachable(format!(
                "namespace {namespace} has no metrics API: {INSTALL}"
            ))
            .into()),
            None => Err(Failure::Unreachable(format!(
                "no pod of the metrics API is ready; `kubectl -n {namespace} describe pods -l {METRICS_API}` shows the reason"
            ))
            .into()),
        }
    }
}

const INSTALL: &str = "install it with `meshctl viz install | kubectl apply -f -`, or name its namespace with --viz-namespace";

/// Returns the namespace of the extension, of which a cluster has one.
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
