//! The pods of a local node that a tap reaches, or why there are none.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use mesh_k8s::select;
use mesh_k8s::values::Values;
use mesh_local::control_plane;
use mesh_objects::convert;
use mesh_objects::inventory::Inventory;
use mesh_objects::inventory::tap::{self, MeshNames, Tappable, TappedPod};
use mesh_objects::model::{Detail, Labels, ListedKind, ListedObject, Name, Selector};
use serde_json::Value;

use super::super::Node;
use crate::clients::tap::TapQuery;
use crate::exit::Failure;

/// The kinds that decide which pods belong to a target.
const KINDS: [ListedKind; 3] = [ListedKind::Pod, ListedKind::ReplicaSet, ListedKind::Service];

/// Reads the objects of a node.
pub(super) fn read(node: &Node) -> anyhow::Result<Inventory> {
    let mut inventory = Inventory::new();
    for kind in KINDS {
        for json in node.objects::<Value>(kind.as_str())? {
            let object = convert::listed_object(kind, json).map_err(anyhow::Error::msg);
            inventory.insert(object.with_context(|| format!("read a {}", kind.as_str()))?);
        }
    }
    Ok(inventory)
}

/// Returns the pods of the query's target that can be tapped.
pub(super) fn select(inventory: &Inventory, query: &TapQuery) -> Result<Vec<TappedPod>, Failure> {
    let selector = select::parse(&query.selector).map_err(Failure::Input)?;
    let selector = Selector::from(selector);
    let Some(target) = target(inventory, query, query.namespace()) else {
        return Err(Failure::Input(not_found(inventory, query)));
    };
    let mesh = MeshNames {
        control_namespace: control_plane::NAMESPACE.to_owned(),
        trust_domain: Values::default().trust_domain().to_owned(),
        tap_port: None,
    };
    let found = tap::tappable(inventory, &target, &selector, &mesh);
    if found.pods.is_empty() {
        let members = inventory.pods(&target).count();
        return Err(Failure::Input(format!(
            "no pods to tap for {query}: of its {members} pods, {}",
            left_out(&found)
        )));
    }
    Ok(found.pods)
}

/// Returns the target in a namespace, if it has pods there. A node has no Deployments and
/// Namespaces of its own: their names are in its pods and ReplicaSets.
fn target(inventory: &Inventory, query: &TapQuery, namespace: &str) -> Option<Arc<ListedObject>> {
    let kind = ListedKind::of_resource_type(query.kind().as_str())?;
    let name = match kind {
        ListedKind::Namespace => Name::new("", namespace),
        _ => Name::new(namespace, query.name()),
    };
    let target = match inventory.get(kind, &name) {
        Some(known) => known.clone(),
        None => Arc::new(ListedObject {
            kind,
            name,
            labels: Labels::default(),
            owner: None,
            detail: Detail::None,
        }),
    };
    let has_pods = inventory.pods(&target).next().is_some();
    has_pods.then_some(target)
}

fn not_found(inventory: &Inventory, query: &TapQuery) -> String {
    let pods = inventory.in_namespace(ListedKind::Pod, "");
    let namespaces: BTreeSet<&str> = pods.map(|pod| &*pod.name.namespace).collect();
    let elsewhere: Vec<&str> = match query.name() {
        "" => Vec::new(),
        _ => namespaces
            .into_iter()
            .filter(|namespace| target(inventory, query, namespace).is_some())
            .collect(),
    };
    if elsewhere.is_empty() {
        return format!(
            "the local node has no pods of {query}; `meshctl local status` lists its pods"
        );
    }
    format!(
        "the local node has no pods of {query}, but of this name in {}: select it with -n",
        elsewhere.join(", ")
    )
}

fn left_out(found: &Tappable) -> String {
    format!(
        "{} are not running, {} are not in the mesh, {} have tap disabled, and {} were created without tap and must be restarted",
        found.not_running, found.unmeshed, found.disabled, found.not_enabled
    )
}

#[cfg(test)]
mod tests;
