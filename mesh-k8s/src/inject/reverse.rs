//! The reverse of an injection: removes from a pod what the injector added.
//!
//! What users wrote stays: their configuration annotations, and `linkerd.io/inject: disabled`. The
//! annotation of opaque ports stays too, because the injector's cannot be distinguished from a
//! user's. Works on plain JSON, so that unknown fields survive.

use mesh_core::annotation;
use serde_json::{Map, Value};

use super::containers::{
    DEBUG_CONTAINER, END_ENTITY_VOLUME, NETWORK_VALIDATOR, PODINFO_VOLUME, TOKEN_VOLUME,
    TRUST_ROOTS_CONFIG_MAP,
};
use crate::pod;
use crate::values::MountPath;

/// The prefix of Linkerd's annotations and labels that are not configuration.
const PREFIX: &str = "linkerd.io/";

/// Removes the proxy, init containers, volumes, annotations and labels of an injection from a pod
/// or pod template. Returns whether anything was removed.
pub fn uninject(pod: &mut Value) -> bool {
    if is_control_plane_object(pod) {
        return false;
    }
    let mut changed = false;
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        let containers = [
            pod::PROXY_CONTAINER,
            pod::INIT_CONTAINER,
            NETWORK_VALIDATOR,
            DEBUG_CONTAINER,
        ];
        changed |= remove_named(spec, "containers", &containers);
        changed |= remove_named(spec, "initContainers", &containers);
        let xtables = MountPath::default().name;
        let volumes = [
            END_ENTITY_VOLUME,
            TOKEN_VOLUME,
            TRUST_ROOTS_CONFIG_MAP,
            PODINFO_VOLUME,
            xtables.as_str(),
        ];
        changed |= remove_named(spec, "volumes", &volumes);
    }
    changed | uninject_metadata(pod)
}

/// Removes the annotations and labels of an injection from an object. Returns whether anything was
/// removed.
pub(crate) fn uninject_metadata(object: &mut Value) -> bool {
    if is_control_plane_object(object) {
        return false;
    }
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return false;
    };
    let mut changed = false;
    for map in ["annotations", "labels"] {
        changed |= remove_keys(meta, map);
    }
    changed
}

/// The proxies and labels of the control plane come from the chart, not from the injector.
fn is_control_plane_object(object: &Value) -> bool {
    object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(annotation::CONTROL_PLANE_COMPONENT))
        .is_some()
}

fn remove_named(spec: &mut Map<String, Value>, list: &str, names: &[&str]) -> bool {
    let Some(items) = spec.get_mut(list).and_then(Value::as_array_mut) else {
        return false;
    };
    let before = items.len();
    items.retain(|item| {
        let name = item.get("name").and_then(Value::as_str);
        name.is_none_or(|name| !names.contains(&name))
    });
    let changed = items.len() != before;
    // The injector created the list for the removed items; `containers` is never empty in a valid
    // pod.
    if changed && items.is_empty() {
        spec.remove(list);
    }
    changed
}

fn remove_keys(meta: &mut Map<String, Value>, map: &str) -> bool {
    let Some(entries) = meta.get_mut(map).and_then(Value::as_object_mut) else {
        return false;
    };
    let before = entries.len();
    entries.retain(|key, value| {
        !key.starts_with(PREFIX) || (key == annotation::INJECT && value == "disabled")
    });
    let changed = entries.len() != before;
    if changed && entries.is_empty() {
        meta.remove(map);
    }
    changed
}
