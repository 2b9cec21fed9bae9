//! The difference between the status of an object and the one that it should have, as a JSON merge
//! patch.
//!
//! A merge patch replaces lists as a whole, so the patch has the entries of other controllers too.
//! It has the resource version of the object that they were read from, so that it fails if another
//! client changed the object in the meantime.

use jiff::Timestamp;
use mesh_objects::model::{ParentKind, ParentRef, ReportedObject, ReportedTarget};
use serde_json::{Value, json};

use super::DesiredStatus;
use super::condition::{self, Condition};
use super::route::ParentStatus;

/// The name of the writer in statuses, which Linkerd's controllers look for.
pub(super) const CONTROLLER_NAME: &str = "linkerd.io/policy-controller";

/// Returns the patch of the object's status; `None` if it differs in nothing but times.
pub(crate) fn patch(
    object: &ReportedObject,
    desired: &DesiredStatus,
    now: Timestamp,
) -> Option<Value> {
    let status = match desired {
        DesiredStatus::Route(parents) => {
            let existing = array(&object.status["parents"]);
            let parents = merge_parents(object, existing, parents, now);
            (parents != existing).then(|| json!({ "parents": parents }))
        }
        DesiredStatus::Policy { accepted, target } => {
            let existing = array(&object.status["conditions"]);
            let conditions = merge_conditions(object, existing, accepted, now);
            let target = target.as_ref().map(target_ref);
            let same = conditions == existing
                && target
                    .as_ref()
                    .is_none_or(|target| *target == object.status["targetRef"]);
            let mut status = json!({ "conditions": conditions });
            if let Some(target) = target {
                status["targetRef"] = target;
            }
            (!same).then_some(status)
        }
    }?;
    let mut metadata = json!({ "name": &*object.name.name, "namespace": &*object.name.namespace });
    if let Some(version) = &object.resource_version {
        metadata["resourceVersion"] = (**version).into();
    }
    Some(json!({
        "apiVersion": &*object.api_version,
        "kind": object.kind.as_str(),
        "metadata": metadata,
        "status": status,
    }))
}

/// Returns the existing entries in their order: other controllers' as they are, this controller's
/// updated, or removed if the route no longer references the parent. New entries follow.
fn merge_parents(
    object: &ReportedObject,
    existing: &[Value],
    desired: &[ParentStatus],
    now: Timestamp,
) -> Vec<Value> {
    let mut pending: Vec<&ParentStatus> = desired.iter().collect();
    let mut merged = Vec::with_capacity(existing.len().max(desired.len()));
    for entry in existing {
        if entry["controllerName"] != CONTROLLER_NAME {
            merged.push(entry.clone());
            continue;
        }
        let same = |status: &&ParentStatus| is_reference_to(&entry["parentRef"], &status.parent);
        if let Some(at) = pending.iter().position(same) {
            let conditions = array(&entry["conditions"]);
            merged.push(parent_entry(object, pending.remove(at), conditions, now));
        }
    }
    let new = pending.into_iter();
    merged.extend(new.map(|status| parent_entry(object, status, &[], now)));
    merged
}

/// Returns the conditions of other types, and the condition of this controller in its place.
fn merge_conditions(
    object: &ReportedObject,
    existing: &[Value],
    accepted: &Condition,
    now: Timestamp,
) -> Vec<Value> {
    let own = |condition: &&Value| condition["type"] == accepted.kind;
    let at = existing.iter().position(|condition| own(&condition));
    let others = existing.iter().filter(|condition| !own(condition));
    let mut merged: Vec<Value> = others.cloned().collect();
    let written = condition::write(
        std::slice::from_ref(accepted),
        existing,
        object.generation,
        now,
    );
    let at = at.unwrap_or(merged.len()).min(merged.len());
    merged.splice(at..at, written);
    merged
}

fn target_ref(target: &ReportedTarget) -> Value {
    json!({ "group": &*target.group, "kind": &*target.kind, "name": &*target.name })
}

fn parent_entry(
    object: &ReportedObject,
    status: &ParentStatus,
    existing: &[Value],
    now: Timestamp,
) -> Value {
    let generation = object.generation;
    json!({
        "controllerName": CONTROLLER_NAME,
        "parentRef": parent_ref(&status.parent),
        "conditions": condition::write(&status.conditions, existing, generation, now),
    })
}

/// Returns the reference as Linkerd writes it: with the group `core` for Services.
fn parent_ref(parent: &ParentRef) -> Value {
    let (group, kind) = group_and_kind(parent.kind);
    let name = &parent.name;
    let mut reference = json!({
        "group": group,
        "kind": kind,
        "namespace": &*name.namespace,
        "name": &*name.name,
    });
    if let Some(port) = parent.port {
        reference["port"] = port.into();
    }
    if let Some(section) = &parent.section {
        reference["sectionName"] = (**section).into();
    }
    reference
}

/// Returns whether a reference in a status is that to the parent. Linkerd's are written like ours.
fn is_reference_to(entry: &Value, parent: &ParentRef) -> bool {
    *entry == parent_ref(parent)
}

fn group_and_kind(kind: ParentKind) -> (&'static str, &'static str) {
    match kind {
        ParentKind::Server => ("policy.linkerd.io", "Server"),
        ParentKind::Service => ("core", "Service"),
        ParentKind::EgressNetwork => ("policy.linkerd.io", "EgressNetwork"),
        // Has no status of this controller.
        ParentKind::Other => ("", ""),
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
