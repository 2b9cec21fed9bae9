//! Servers that select nothing, and several Servers on one port.

use mesh_objects::model::Server;
use mesh_objects::policy::server::{self as policy, server_of_port};

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, is_of_proxy};

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for server in objects.of(POLICY, "Server") {
        selection(objects, server, findings);
        external_selection(objects, server, findings);
        older(objects, server, findings);
    }
}

/// Reports a Server that selects no pods, and a Server whose port no selected pod has.
fn selection(objects: &Objects, server: &Object, findings: &mut Vec<Finding>) {
    let selector = &server.spec()["podSelector"];
    let mut workloads = objects.pods_of_namespace(&server.namespace).peekable();
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
fn older(objects: &Objects, object: &Object, findings: &mut Vec<Finding>) {
    let Some(server) = object.server() else {
        return;
    };
    let store = objects.store();
    let namespace = &server.name.namespace;
    let servers = || store.servers_in(namespace);
    let applies_instead = |workload: policy::Workload<'_>| {
        let ports = server.ports_of(workload).into_iter();
        let mut first = ports.filter_map(|port| server_of_port(servers(), workload, port));
        first.find(|first| first.name != server.name)
    };
    let mut workloads = objects.workloads();
    let mut external = store.external_workloads_in(namespace);
    // Without workloads, two Servers with the same selection are found.
    let is_same = |other: &&Server| {
        let (own, others) = (&server.workloads, &other.workloads);
        own == others && other.port == server.port && other.age() < server.age()
    };
    let older = workloads
        .find_map(|workload| workload.selectable(applies_instead))
        .or_else(|| external.find_map(|it| applies_instead(it.into())))
        .or_else(|| servers().filter(is_same).min_by_key(|other| other.age()));
    if let Some(older) = older {
        findings.push(Finding::new(
            object,
            "spec.port",
            "duplicate-port",
            format!(
                "Server {} is older and selects the same port of the same workloads, where this one has no effect",
                older.name.name
            ),
            "merge the two, or let them select different workloads or ports",
        ));
    }
}
