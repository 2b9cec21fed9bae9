//! Reads the objects of a local node: the pods that the node wrote and the policies in the user's
//! manifests.

use std::fs;
use std::path::Path;

use mesh_k8s::crd;
use mesh_k8s::kinds::Pod;
use mesh_local::settings::Settings;
use serde::Deserialize as _;
use serde_json::Value;

use crate::facts::Fact;
use crate::node::Node;

pub(super) fn pods(node: &Node) -> Fact<Vec<Pod>> {
    node.objects("Pod").map_err(|error| format!("{error:#}"))
}

/// Returns the policy objects and ExternalWorkloads of the manifests. Invalid documents are
/// skipped, because the controllers log them.
pub(super) fn policies(node: &Node) -> Fact<Vec<Value>> {
    let settings = Settings::read(&node.paths).map_err(|error| error.to_string())?;
    let directory = &settings.manifests;
    let entries = fs::read_dir(directory)
        .map_err(|error| format!("cannot read the directory {}: {error}", directory.display()))?;
    let mut all = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if is_manifest(&path) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            all.extend(documents(&text).into_iter().filter(is_policy));
        }
    }
    Ok(all)
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json"))
}

fn documents(text: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text)
        .filter_map(|document| Value::deserialize(document).ok())
        .map(|mut value| {
            if value["metadata"].is_object() && value["metadata"]["namespace"].is_null() {
                value["metadata"]["namespace"] = Value::from("default");
            }
            value
        })
        .collect()
}

fn is_policy(value: &Value) -> bool {
    let group = value["apiVersion"].as_str().unwrap_or_default();
    let groups = [
        crd::GROUP,
        "gateway.networking.k8s.io",
        "workload.linkerd.io",
    ];
    groups.iter().any(|known| group.starts_with(known))
}
