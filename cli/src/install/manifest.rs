//! Splits, orders and prints rendered manifests.

use mesh_k8s::values::Values;
use serde_json::{Value, json};

use super::chart::VALUES_KIND;
use crate::output;
use crate::output::manifests::ManifestFormat;

/// A manifest as text and as a JSON object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) text: String,
    pub(crate) object: Value,
}

/// The identification of an object in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl Manifest {
    pub(crate) fn from_object(object: Value) -> anyhow::Result<Self> {
        let text = serde_norway::to_string(&object)?;
        Ok(Self { text, object })
    }

    pub(crate) fn name(&self) -> ObjectName {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &self.object["metadata"];
        ObjectName {
            kind: text(&self.object["kind"]).unwrap_or_default(),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]).unwrap_or_default(),
        }
    }

    fn is_hook(&self) -> bool {
        self.object["metadata"]["annotations"]
            .get("helm.sh/hook")
            .is_some()
    }

    pub(super) fn is_values(&self) -> bool {
        self.object["kind"] == VALUES_KIND
    }
}

/// Returns the documents of a YAML stream that are not empty.
pub(crate) fn split(stream: &str) -> anyhow::Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for text in format!("\n{stream}").split("\n---") {
        let object: Value = serde_norway::from_str(text)?;
        if !object.is_null() {
            manifests.push(Manifest {
                text: text.trim().to_owned() + "\n",
                object,
            });
        }
    }
    Ok(manifests)
}

/// Moves Helm hooks to the front. kubectl does not wait for hooks, so that the Job that creates the
/// certificates must start first.
pub(crate) fn hooks_first(manifests: &mut [Manifest]) {
    manifests.sort_by_key(|manifest| !manifest.is_hook());
}

/// Returns the namespace of the control plane.
pub(crate) fn namespace(values: &Values) -> anyhow::Result<Manifest> {
    let name = &values.namespace;
    Manifest::from_object(json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "annotations": { "linkerd.io/inject": "disabled" },
            "labels": {
                "linkerd.io/is-control-plane": "true",
                "linkerd.io/control-plane-ns": name,
                "config.linkerd.io/admission-webhooks": "disabled",
                "pod-security.kubernetes.io/enforce": values.pod_security_level(),
            },
        },
    }))
}

/// Prints manifests as a YAML stream with Helm's text, or as a JSON List.
pub(crate) fn print(manifests: &[Manifest], format: ManifestFormat) -> anyhow::Result<()> {
    match format {
        ManifestFormat::Yaml => {
            let documents: Vec<String> = manifests
                .iter()
                .map(|manifest| format!("---\n{}", manifest.text))
                .collect();
            output::text(&documents.concat())
        }
        ManifestFormat::Json => {
            let items: Vec<&Value> = manifests.iter().map(|manifest| &manifest.object).collect();
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            output::line(&serde_json::to_string_pretty(&list)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "---\n# Source: a.yaml\nkind: ConfigMap\nmetadata: {name: a, namespace: n}\ndata:\n  pem: |\n    -----BEGIN X-----\n    AA==\n    \
        -----END X-----\n---\n# nothing\n---\nkind: Job\nmetadata: {name: b, annotations: {helm.sh/hook: pre-install}}\n";

    #[test]
    fn split_ignores_separators_inside_documents() {
        let manifests = split(STREAM).unwrap();
        let names: Vec<String> = manifests
            .iter()
            .map(|manifest| manifest.name().name)
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert!(manifests[0].text.contains("-----END X-----"));
    }

    #[test]
    fn hooks_move_to_the_front() {
        let mut manifests = split(STREAM).unwrap();
        hooks_first(&mut manifests);
        assert_eq!(manifests[0].name().kind, "Job");
    }
}
