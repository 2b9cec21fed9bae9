//! `namespace-metadata`: marks the namespace of an extension. Helm cannot change a namespace that
//! it creates, so a Job of the extension's chart runs this command of `mesh-viz` or
//! `mesh-controller`, the program that the extension's other pods run.

use clap::Args;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use mesh_core::annotation::{EXTENSION, EXTERNAL_PROMETHEUS};
use mesh_core::rights::{self, Right};
use serde_json::{Value, json};

use crate::api_server::{self, ConnectError, explain};
use crate::flags::{Cluster, Log};

/// The flags of the command.
#[derive(Debug, Args)]
pub struct NamespaceMetadata {
    /// Name of the extension, the value of the label linkerd.io/extension
    #[arg(long, value_name = "NAME")]
    pub extension: String,
    /// Namespace of the extension
    #[arg(long, value_name = "NAME")]
    pub namespace: String,
    /// URL of the Prometheus that the viz extension uses instead of its own; empty for none.
    /// Without the flag, the annotation of the namespace stays as it is
    #[arg(long, value_name = "URL")]
    pub prometheus_url: Option<String>,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}

/// Why the namespace was not changed.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceMetadataError {
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("cannot label the namespace {namespace}: {problem}")]
    Patch { namespace: String, problem: String },
}

/// Writes label and annotation, as a program with these rights.
///
/// # Errors
///
/// The API server could not be reached for two minutes, or refused the change.
pub async fn run(
    config: NamespaceMetadata,
    (program, rights): (&str, Vec<Right>),
) -> Result<(), NamespaceMetadataError> {
    let client = api_server::connect(&config.cluster, program, rights)
        .await
        .map_err(NamespaceMetadataError::Connect)?;
    let namespaces: Api<Namespace> = Api::all(client);
    let url = config.prometheus_url.as_deref();
    let patch = Patch::Merge(metadata(&config.extension, url));
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

/// Returns the rights for a namespace, which the chart names.
pub fn rights(namespace: &'static str) -> impl Iterator<Item = Right> {
    rights::named("", "namespaces", &["patch"], namespace)
}

/// Returns the change. An empty URL removes the annotation.
fn metadata(extension: &str, prometheus_url: Option<&str>) -> Value {
    let mut metadata = json!({ "labels": { EXTENSION: extension } });
    if let Some(url) = prometheus_url {
        let url = (!url.is_empty()).then_some(url);
        metadata["annotations"] = json!({ EXTERNAL_PROMETHEUS: url });
    }
    json!({ "metadata": metadata })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_url_removes_the_annotation() {
        let annotations = |url: Option<&str>| {
            let patch = metadata("viz", url);
            let labels = &patch["metadata"]["labels"];
            assert_eq!(labels, &json!({"linkerd.io/extension": "viz"}));
            patch["metadata"].get("annotations").cloned()
        };
        let of_url = |url: Value| Some(json!({"viz.linkerd.io/external-prometheus": url}));
        assert_eq!(annotations(Some("http://a")), of_url(json!("http://a")));
        assert_eq!(annotations(Some("")), of_url(Value::Null));
        assert_eq!(annotations(None), None);
    }
}
