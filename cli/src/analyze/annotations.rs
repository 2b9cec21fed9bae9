//! Annotations that are misspelled, or have no effect on the object that has them.

use mesh_core::annotation::FAULT_PREFIX;
use mesh_core::route::fault;
use mesh_k8s::known_annotations::{self, Place};
use mesh_k8s::spelling::distance;
use serde_json::Value;

use super::finding::Finding;
use super::objects::{GATEWAY, Object, Objects, POLICY, list, text};

/// A key with more differences from every known one has no suggestion.
const MAX_DISTANCE: usize = 3;
/// A domain with more differences belongs to another project.
const MAX_DOMAIN_DISTANCE: usize = 2;

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for object in objects.iter().filter(|object| !object.is_of_workload()) {
        let annotations = &object.json["metadata"]["annotations"];
        check(
            object,
            "metadata.annotations",
            annotations,
            place(object),
            findings,
        );
    }
    for workload in objects.workloads() {
        if !workload.path.is_empty() {
            let field = format!("{}metadata.annotations", workload.path);
            let annotations = &workload.template["metadata"]["annotations"];
            check(
                workload.object,
                &field,
                annotations,
                Some(Place::Pod),
                findings,
            );
        }
    }
}

fn place(object: &Object) -> Option<Place> {
    match (&*object.group, &*object.kind) {
        ("", "Pod") => Some(Place::Pod),
        ("", "Namespace") => Some(Place::Namespace),
        ("", "Service") => Some(Place::Service),
        (POLICY, "EgressNetwork") => Some(Place::EgressNetwork),
        (POLICY | GATEWAY, "HTTPRoute") | (GATEWAY, "GRPCRoute") => Some(Place::Route),
        _ => None,
    }
}

fn check(
    object: &Object,
    field: &str,
    annotations: &Value,
    place: Option<Place>,
    findings: &mut Vec<Finding>,
) {
    let Some(annotations) = annotations.as_object() else {
        return;
    };
    for key in annotations.keys() {
        let field = format!("{field}[{key}]");
        let Some(known) = known_annotations::find(key) else {
            if is_own(key) || is_misspelled_domain(key) {
                findings.push(unknown(object, field, key));
            }
            continue;
        };
        let fault = key.strip_prefix(FAULT_PREFIX);
        if place == Some(Place::Route) && fault.is_some_and(|name| !injects(object, name)) {
            findings.push(unused_fault(object, field));
            continue;
        }
        let has_effect = place.is_some_and(|place| known.places.contains(&place));
        // Programs write the annotations that have no places.
        if !has_effect && !known.places.is_empty() {
            findings.push(Finding::new(
                object,
                field,
                "no-effect",
                format!("has no effect on a {}", object.kind),
                fix(object, known.places),
            ));
        }
    }
}

/// Returns whether a filter of the route injects a fault.
fn injects(route: &Object, fault: &str) -> bool {
    let names = |filter: &Value| {
        let reference = &filter["extensionRef"];
        fault::is_reference(text(&reference["group"]), text(&reference["kind"]))
            && reference["name"] == fault
    };
    let has = |place: &Value| list(&place["filters"]).iter().any(names);
    let mut rules = route.list("rules").iter();
    rules.any(|rule| has(rule) || list(&rule["backendRefs"]).iter().any(has))
}

fn unused_fault(route: &Object, field: String) -> Finding {
    Finding::new(
        route,
        field,
        "no-effect",
        "describes a fault that no filter of the route injects",
        "add a filter of the type ExtensionRef with its name, or remove it",
    )
}

/// Returns whether the key is one of Linkerd's domains that users write.
fn is_own(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let own = domain == "linkerd.io" || domain.ends_with(".linkerd.io");
    // Written by the multicluster extension.
    own && !domain.starts_with("mirror.") && !domain.starts_with("multicluster.")
}

/// Returns whether a key differs from one of the mesh only in the spelling of its domain.
fn is_misspelled_domain(key: &str) -> bool {
    let Some((domain, name)) = key.split_once('/') else {
        return false;
    };
    if domain == "linkerd.io" || domain.ends_with(".linkerd.io") {
        return false;
    }
    known_annotations::keys().any(|known| {
        let own = known.split_once('/');
        own.is_some_and(|(own, of_name)| {
            of_name == name && distance(domain, own) <= MAX_DOMAIN_DISTANCE
        })
    })
}

fn unknown(object: &Object, field: String, key: &str) -> Finding {
    let nearest = known_annotations::keys()
        .map(|known| (distance(key, known), known))
        .min()
        .filter(|(distance, _)| *distance <= MAX_DISTANCE);
    let fix = match nearest {
        Some((_, known)) => format!("write {known}"),
        None => "remove it; docs/reference/annotations.md lists the annotations".to_owned(),
    };
    Finding::new(
        object,
        field,
        "unknown-annotation",
        "is not an annotation of the mesh, so it has no effect",
        fix,
    )
}

fn fix(object: &Object, places: &[Place]) -> String {
    let is_workload = matches!(
        &*object.kind,
        "Deployment" | "StatefulSet" | "DaemonSet" | "Job" | "ReplicaSet" | "CronJob"
    );
    if is_workload && places.contains(&Place::Pod) {
        return "write it below metadata of the pod template".to_owned();
    }
    let names: Vec<&str> = places
        .iter()
        .map(|place| match place {
            Place::Pod => "a pod template",
            Place::Namespace => "a Namespace",
            Place::Service => "a Service",
            Place::Route => "an HTTPRoute or GRPCRoute",
            Place::EgressNetwork => "an EgressNetwork",
        })
        .collect();
    format!("write it on {}", names.join(" or "))
}
