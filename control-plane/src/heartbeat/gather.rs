//! Reads the values of the report from the API server and from Prometheus.

use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client};
use mesh_core::rights::{self, Right};
use mesh_k8s::crd::ServiceProfile;
use mesh_k8s::heartbeat::{self, Absence, Figure, Observations, Parameter, Report};

use mesh_cluster::api_server::explain;
use mesh_cluster::prometheus::PrometheusClient;

/// The deadline of a request to the API server. They are sent at the same time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the report. Values that cannot be read are left out.
pub(super) async fn report(
    client: &Client,
    prometheus: Option<&PrometheusClient>,
    control_namespace: &str,
) -> Report {
    // Boxed, because it holds four requests.
    let observations = Box::pin(observe(client, control_namespace)).await;
    let extensions = observations.extensions.as_deref().unwrap_or_default();
    let figures = heartbeat::figures(control_namespace, extensions);
    let figures = figures.iter().map(|figure| query(prometheus, figure));
    let figures = join_all(figures).await;
    Report::new(&observations, figures)
}

/// Returns the rights to read the objects that the report describes.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::named("", "configmaps", &["get"], heartbeat::CONFIG)
        .chain(rights::all("", "namespaces", &["list"]))
        .chain(rights::all("linkerd.io", "serviceprofiles", &["list"]))
}

async fn observe(client: &Client, control_namespace: &str) -> Observations {
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), control_namespace);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let profiles: Api<ServiceProfile> = Api::all(client.clone());
    let (extensions, one) = (heartbeat::extension_namespaces(), heartbeat::one_object());
    let (config, version, extensions, profiles) = tokio::join!(
        within_timeout(
            "read ConfigMap linkerd-config",
            configs.get(heartbeat::CONFIG)
        ),
        within_timeout(
            "query the version of the API server",
            client.apiserver_version()
        ),
        within_timeout(
            "list the namespaces of extensions",
            namespaces.list_metadata(&extensions)
        ),
        within_timeout("count the ServiceProfiles", profiles.list_metadata(&one)),
    );
    let architecture = Ok(heartbeat::own_architecture());
    Observations::new(architecture, config, version, extensions, profiles)
}

async fn within_timeout<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(format!("cannot {what}: {}", explain(&error))),
        Err(_elapsed) => Err(format!(
            "cannot {what}: no response within {} s",
            TIMEOUT.as_secs()
        )),
    }
}

async fn query(prometheus: Option<&PrometheusClient>, figure: &Figure) -> Parameter {
    let samples = match prometheus {
        Some(prometheus) => prometheus.query(&figure.query).await,
        None => return figure.parameter(Err(Absence::no_prometheus())),
    };
    let values = samples.map(|samples| samples.iter().map(|sample| sample.value).collect());
    figure.parameter(values.map_err(|error| Absence::Unread(error.to_string())))
}

#[cfg(test)]
mod tests;
