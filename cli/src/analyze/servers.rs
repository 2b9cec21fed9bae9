//! Servers that select nothing, and several Servers on one port.

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, Workload, is_of_proxy};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for server in objects.of(POLICY, "Server") {
        selection(objects, server, findings);
        external_selection(objects, server, findings);
        older(objects, server, findings);
    }
}

/// Reports a Server without pods, and one whose port none of them has.
fn selection(objects: &Objects, server: &Object, findings: &mut Vec<Finding>) {
    let selector = &server.spec()["podSelector"];
    let mut workloads = objects
        .workloads()
        .filter(|workload| workload.object.namespace == server.namespace)
        .peekable();
    // Without workloads nothing is known.
    if selector.is_null() || workloads.peek().is_none() {
        return;
    }
    let selected: Vec<_> = workloads
        .filter(|workload| workload.is_selected_by(selector))
        .collect();
    if selected.is_empty() {
        findings.push(Finding::new(
            server,
            "spec.podSelector",
            "selects-nothing",
            format!("selects no pods of namespace {}", server.namespace),
            "correct the labels, or delete the Server",
        ));
        return;
    }
    let port = &server.spec()["port"];
    if let Some(name) = port.as_str()
        && !is_of_proxy(port)
        && selected
            .iter()
            .all(|workload| workload.ports(port).is_empty())
    {
        let workload = selected[0].object;
        findings.push(Finding::new(
            server,
            "spec.port",
            "selects-nothing",
            format!(
                "no container of {} {} has a TCP port with the name {name:?}",
                workload.kind, workload.name
            ),
            "use the name of a container's port, or its number",
        ));
    }
}

/// Reports a Server without ExternalWorkloads, if its namespace has any.
fn external_selection(objects: &Objects, server: &Object, findings: &mut Vec<Finding>) {
    let selector = &server.spec()["externalWorkloadSelector"];
    let mut external = objects.external_workloads(&server.namespace).peekable();
    if selector.is_null() || external.peek().is_none() {
        return;
    }
    if !external.any(|workload| workload.has_labels(selector)) {
        findings.push(Finding::new(
            server,
            "spec.externalWorkloadSelector",
            "selects-nothing",
            format!(
                "selects no ExternalWorkloads of namespace {}",
                server.namespace
            ),
            "correct the labels, or delete the Server",
        ));
    }
}

/// Reports a Server for a port that an older one has.
fn older(objects: &Objects, server: &Object, findings: &mut Vec<Finding>) {
    let others = objects.of(POLICY, "Server");
    let older = others
        .filter(|other| other.namespace == server.namespace && other.age() < server.age())
        .find(|other| shares_port(objects, server, other));
    if let Some(older) = older {
        findings.push(Finding::new(
            server,
            "spec.port",
            "duplicate-port",
            format!(
                "Server {} is older and selects the same port of the same workloads, where this one has no effect",
                older.name
            ),
            "merge the two, or let them select different workloads or ports",
        ));
    }
}

/// Returns whether two Servers select a port of one workload; without workloads, whether they are
/// equal.
fn shares_port(objects: &Objects, one: &Object, other: &Object) -> bool {
    let server_namespace = &one.namespace;
    let (one, other) = (one.spec(), other.spec());
    let same = ["podSelector", "externalWorkloadSelector", "port"]
        .iter()
        .all(|field| one[field] == other[field]);
    let both = |workload: Workload<'_>| {
        let is_selected = |spec: &serde_json::Value| workload.is_selected_by(&spec["podSelector"]);
        if !is_selected(one) || !is_selected(other) {
            return false;
        }
        let ports = workload.ports(&other["port"]);
        let mut shared = workload.ports(&one["port"]).into_iter();
        shared.any(|port| ports.contains(&port))
    };
    let both_external = |workload: &Object| {
        let is_selected =
            |spec: &serde_json::Value| workload.has_labels(&spec["externalWorkloadSelector"]);
        let ports = workload.external_ports(&other["port"]);
        let mut shared = workload.external_ports(&one["port"]).into_iter();
        is_selected(one) && is_selected(other) && shared.any(|port| ports.contains(&port))
    };
    let mut external = objects.external_workloads(server_namespace);
    same || external.any(both_external)
        || objects
            .workloads()
            .filter(|workload| workload.object.namespace == *server_namespace)
            .any(both)
}
