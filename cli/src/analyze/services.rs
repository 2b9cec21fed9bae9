//! Services that lead to no pods or to a port that none of their pods has, and their annotations.

use std::collections::BTreeMap;

use mesh_core::annotation::{LOCAL_DISCOVERY, LOCALITY_FAILOVER, REMOTE_DISCOVERY};
use mesh_k8s::invalid::Invalid;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::traffic_annotations;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, Workload, is_tcp, text};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for service in objects.of("", "Service") {
        selection(objects, service, findings);
        annotations(service, findings);
        failover(service, findings);
    }
    for network in objects.of(POLICY, "EgressNetwork") {
        annotations(network, findings);
    }
}

/// Returns the selector of a Service; `None` without one. Then its creator writes EndpointSlices.
pub(super) fn selector(service: &Object) -> Option<Value> {
    let labels = &service.spec()["selector"];
    let has_labels = labels.as_object().is_some_and(|labels| !labels.is_empty());
    let is_external = text(&service.spec()["type"]) == "ExternalName";
    (has_labels && !is_external).then(|| json!({ "matchLabels": labels }))
}

/// Returns the name or number of the pods' port that a port of a Service leads to.
pub(super) fn target(port: &Value) -> &Value {
    match &port["targetPort"] {
        Value::Null => &port["port"],
        target => target,
    }
}

fn selection(objects: &Objects, service: &Object, findings: &mut Vec<Finding>) {
    let Some(selector) = selector(service) else {
        return;
    };
    let mut pods = objects.pods_of_namespace(&service.namespace).peekable();
    // Without workloads nothing is known.
    if pods.peek().is_none() {
        return;
    }
    let selected: Vec<Workload<'_>> = pods.filter(|pod| pod.is_selected_by(&selector)).collect();
    let external = objects.external_workloads(&service.namespace);
    let external: Vec<&Object> = external.filter(|it| it.has_labels(&selector)).collect();
    let first = selected.first().map(|pod| pod.object);
    let Some(owner) = first.or(external.first().copied()) else {
        findings.push(Finding::new(
            service,
            "spec.selector",
            "selects-nothing",
            format!(
                "selects no pods of namespace {}, so connections to the Service fail",
                service.namespace
            ),
            "correct the labels, or delete the Service",
        ));
        return;
    };
    for (at, port) in service.list("ports").iter().enumerate() {
        let target = target(port);
        if !is_tcp(port)
            || selected.iter().any(|pod| pod.may_listen_on(target))
            || external.iter().any(|it| may_have_port(it, target))
        {
            continue;
        }
        let what = match target.as_str() {
            Some(name) => format!("a TCP port with the name {name:?}"),
            None => format!("TCP port {target}, though they have others"),
        };
        let owner = format!("{} {}", owner.kind, owner.name);
        let (part, fix) = if first.is_some() {
            (
                format!("container of {owner} declares"),
                "use the name or the number of a container's port, or declare the port in the container",
            )
        } else {
            (
                format!("port of {owner} is"),
                "use the name of a port of the ExternalWorkload, or add the port there",
            )
        };
        findings.push(Finding::new(
            service,
            format!("spec.ports[{at}].targetPort"),
            "no-such-port",
            format!(
                "no {part} {what}, so connections to port {} fail",
                port["port"]
            ),
            fix,
        ));
    }
}

/// Returns whether a Service's connections may reach a port of a machine, which may listen on any
/// number.
fn may_have_port(workload: &Object, target: &Value) -> bool {
    let Some(name) = target.as_str() else {
        return true;
    };
    let mut ports = workload.list("ports").iter();
    ports.any(|port| is_tcp(port) && text(&port["name"]) == name)
}

/// Reports annotations of requests that the policy controller ignores.
fn annotations(object: &Object, findings: &mut Vec<Finding>) {
    for invalid in traffic_annotations::problems(&meta(object)) {
        let ignored = "the controller ignores all annotations of this group";
        findings.push(invalid_annotation(object, invalid, ignored));
    }
}

/// Reports an order of localities that the destination controller ignores.
fn failover(service: &Object, findings: &mut Vec<Finding>) {
    let reason = match traffic_annotations::failover(&meta(service)) {
        Ok(None) => return,
        Err(invalid) => {
            let ignored = "the controller ignores the annotation";
            findings.push(invalid_annotation(service, invalid, ignored));
            return;
        }
        Ok(Some(_)) => match service.spec() {
            spec if text(&spec["type"]) == "ExternalName" => "an ExternalName Service",
            spec if text(&spec["internalTrafficPolicy"]) == "Local" && !has_members(service) => {
                "a Service with internalTrafficPolicy Local, whose clients use their own node only"
            }
            _ => return,
        },
    };
    findings.push(Finding::new(
        service,
        format!("metadata.annotations[{LOCALITY_FAILOVER}]"),
        "no-effect",
        format!("has no effect on {reason}"),
        "remove the annotation, or change the Service",
    ));
}

/// Whether the endpoints are those of other Services.
fn has_members(service: &Object) -> bool {
    let annotations = &service.json["metadata"]["annotations"];
    [REMOTE_DISCOVERY, LOCAL_DISCOVERY]
        .iter()
        .any(|key| annotations[key].is_string())
        || service.json["metadata"]["labels"][REMOTE_DISCOVERY].is_string()
}

/// Returns the annotations of an object; none if they cannot be read.
fn meta(object: &Object) -> ObjectMeta {
    let annotations = &object.json["metadata"]["annotations"];
    ObjectMeta {
        annotations: BTreeMap::deserialize(annotations).ok(),
        ..ObjectMeta::default()
    }
}

fn invalid_annotation(object: &Object, invalid: Invalid, ignored: &str) -> Finding {
    Finding::new(
        object,
        invalid.field,
        "invalid",
        format!("{}; {ignored}", invalid.problem),
        "correct the value; docs/reference/annotations.md has the valid ones",
    )
}
