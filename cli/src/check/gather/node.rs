//! The objects of a local node: its pods as it wrote them down, its policies as the user did.

use std::{fs, path::Path};

use mesh_k8s::{crd, kinds::Pod};
use mesh_local::settings::Settings;
use serde::Deserialize as _;
use serde_json::Value;

use super::super::facts::Seen;
use crate::node::Node;

pub(super) fn pods(node: &Node) -> Seen<Vec<Pod>> {
    node.objects("Pod").map_err(|error| format!("{error:#}"))
}

/// Documents that cannot be read are left out here: the controllers' logs name them.
pub(super) fn policies(node: &Node) -> Seen<Vec<Value>> {
    let settings = Settings::read(&node.instance).map_err(|error| error.to_string())?;
    let folder = &settings.manifests;
    let entries = fs::read_dir(folder)
        .map_err(|error| format!("cannot read the folder {}: {error}", folder.display()))?;
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
    group.starts_with(crd::GROUP) || group.starts_with("gateway.networking.k8s.io")
}
