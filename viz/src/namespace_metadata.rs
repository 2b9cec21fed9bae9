//! `mesh-viz namespace-metadata`: marks the namespace of an extension. Helm cannot change a
//! namespace that it creates, so a Job of the extension's chart runs this.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use mesh_cluster::api_server::{self, ConnectError, explain};
use mesh_core::annotation::{EXTENSION, EXTERNAL_PROMETHEUS};
use mesh_core::rights::{self, Right};
use serde_json::{Value, json};

use crate::config;

/// Why the namespace was not changed.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceMetadataError {
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("cannot label the namespace {namespace}: {problem}")]
    Patch { namespace: String, problem: String },
}

/// Writes label and annotation. An existing annotation is removed if there is no URL.
pub(crate) async fn run(config: config::NamespaceMetadata) -> Result<(), NamespaceMetadataError> {
    let client = api_server::connect(
        &config.cluster,
        "mesh-viz namespace-metadata",
        rights().collect(),
    )
    .await
    .map_err(NamespaceMetadataError::Connect)?;
    let namespaces: Api<Namespace> = Api::all(client);
    let patch = Patch::Merge(metadata(&config.extension, &config.prometheus_url));
    api_server::retry_while_unreachable(async || {
        namespaces
            .patch(&config.namespace, &PatchParams::default(), &patch)
            .await
    })
    .await
    .map_err(|error| NamespaceMetadataError::Patch {
        namespace: config.namespace.clone(),
        problem: explain(&error),
    })?;
    tracing::info!(
        namespace = config.namespace,
        extension = config.extension,
        "Labelled the namespace"
    );
    Ok(())
}

/// The namespace is named by the chart.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::named("", "namespaces", &["patch"], "linkerd-viz")
}

fn metadata(extension: &str, prometheus_url: &str) -> Value {
    let url = (!prometheus_url.is_empty()).then_some(prometheus_url);
    json!({
        "metadata": {
            "labels": { EXTENSION: extension },
            "annotations": { EXTERNAL_PROMETHEUS: url },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_url_removes_annotation() {
        let annotation = |url: &str| {
            let patch = metadata("viz", url);
            patch["metadata"]["annotations"]["viz.linkerd.io/external-prometheus"].clone()
        };
        assert_eq!(annotation("http://a"), "http://a");
        assert_eq!(annotation(""), Value::Null);
        let labels = &metadata("viz", "")["metadata"]["labels"];
        assert_eq!(labels, &json!({"linkerd.io/extension": "viz"}));
    }
}
