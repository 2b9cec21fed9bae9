//! Which Server applies to a port of a workload.

use std::sync::Arc;

use mesh_core::ports::PortSet;

use super::age::Age;
use crate::model::{
    ContainerPort, ExternalWorkload, Labels, PodRecord, Protocol, Server, ServerPort,
    WorkloadSelector,
};

/// The properties of a workload that Servers select.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    pub namespace: &'a str,
    pub labels: &'a Labels,
    ports: Ports<'a>,
}

/// The declared ports of a workload. Only pods are selected by `podSelector`, and only
/// ExternalWorkloads by `externalWorkloadSelector`.
#[derive(Clone, Copy, Debug)]
enum Ports<'a> {
    Pod(&'a [ContainerPort]),
    Template(&'a [(Arc<str>, u16)]),
    External(&'a [(Arc<str>, u16)]),
}

impl<'a> Workload<'a> {
    /// A pod, or the template of pods, with the names of its TCP ports.
    pub fn pod(namespace: &'a str, labels: &'a Labels, named_ports: &'a [(Arc<str>, u16)]) -> Self {
        Self {
            namespace,
            labels,
            ports: Ports::Template(named_ports),
        }
    }

    /// An ExternalWorkload, with the names of its TCP ports.
    pub fn external(
        namespace: &'a str,
        labels: &'a Labels,
        named_ports: &'a [(Arc<str>, u16)],
    ) -> Self {
        Self {
            namespace,
            labels,
            ports: Ports::External(named_ports),
        }
    }

    fn has_port(&self, name: &str, number: u16) -> bool {
        self.named(name).any(|port| port == number)
    }

    fn named(self, name: &str) -> impl Iterator<Item = u16> {
        let (containers, pairs): (&[ContainerPort], &[(Arc<str>, u16)]) = match self.ports {
            Ports::Pod(ports) => (ports, &[]),
            Ports::Template(pairs) | Ports::External(pairs) => (&[], pairs),
        };
        let containers = containers
            .iter()
            .filter(move |port| port.tcp && port.name.as_deref() == Some(name))
            .map(|port| port.number);
        let pairs = pairs.iter().filter(move |(have, _)| **have == *name);
        containers.chain(pairs.map(|(_, number)| *number))
    }
}

impl<'a> From<&'a PodRecord> for Workload<'a> {
    fn from(pod: &'a PodRecord) -> Self {
        Self {
            namespace: &pod.name.namespace,
            labels: &pod.labels,
            ports: Ports::Pod(&pod.ports),
        }
    }
}

impl<'a> From<&'a ExternalWorkload> for Workload<'a> {
    fn from(workload: &'a ExternalWorkload) -> Self {
        Self::external(
            &workload.name.namespace,
            &workload.labels,
            &workload.named_ports,
        )
    }
}

impl Server {
    /// Returns the place in the order that decides between Servers of one port.
    pub fn age(&self) -> Age<'_> {
        Age::new(self.created, &self.name)
    }

    /// Returns whether the Server selects the workload. The workload may lack the Server's port.
    pub fn selects_workload(&self, workload: Workload<'_>) -> bool {
        match (&self.workloads, workload.ports) {
            (WorkloadSelector::Pods(selector), Ports::Pod(_) | Ports::Template(_))
            | (WorkloadSelector::ExternalWorkloads(selector), Ports::External(_)) => {
                *self.name.namespace == *workload.namespace && selector.matches(workload.labels)
            }
            _ => false,
        }
    }

    /// Returns whether the Server selects a port of the workload.
    pub fn selects(&self, workload: Workload<'_>, port: u16) -> bool {
        let has_port = match &self.port {
            ServerPort::Number(number) => *number == port,
            ServerPort::Name(name) => workload.has_port(name, port),
        };
        has_port && self.selects_workload(workload)
    }

    /// Returns the ports of the workload that the Server selects, in ascending order.
    pub fn ports_of(&self, workload: Workload<'_>) -> Vec<u16> {
        if !self.selects_workload(workload) {
            return Vec::new();
        }
        match &self.port {
            ServerPort::Number(number) => vec![*number],
            ServerPort::Name(name) => {
                let mut ports: Vec<u16> = workload.named(name).collect();
                ports.sort_unstable();
                ports.dedup();
                ports
            }
        }
    }
}

/// Returns the Server that applies to a port: the oldest that selects it. The other Servers have no
/// effect on the port.
pub fn server_of_port<'a>(
    candidates: impl IntoIterator<Item = &'a Server>,
    workload: Workload<'_>,
    port: u16,
) -> Option<&'a Server> {
    let selecting = candidates.into_iter();
    selecting
        .filter(|server| server.selects(workload, port))
        .min_by_key(|server| server.age())
}

/// Returns whether a port of the workload is opaque: by its annotation, else by the default list,
/// or by any Server, even if policies use another Server.
pub fn is_opaque<'a>(
    candidates: impl IntoIterator<Item = &'a Server>,
    workload: Workload<'_>,
    annotated: Option<&PortSet>,
    default: &PortSet,
    port: u16,
) -> bool {
    let by_server =
        |server: &Server| server.protocol == Protocol::Opaque && server.selects(workload, port);
    annotated.unwrap_or(default).contains(port) || candidates.into_iter().any(by_server)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::convert::{Json, object};
    use crate::model::{Kind, Object};

    fn server(name: &str, created: Option<&str>, spec: serde_json::Value) -> Server {
        let json = json!({
            "metadata": { "name": name, "namespace": "shop", "creationTimestamp": created },
            "spec": spec,
        });
        match object(Kind::Server, &Json(json)).unwrap() {
            Object::Server(server) => Arc::unwrap_or_clone(server),
            other => panic!("{other:?}"),
        }
    }

    const OLD: Option<&str> = Some("2026-01-01T00:00:00Z");
    const YOUNG: Option<&str> = Some("2026-01-01T01:00:00+00:30");

    #[test]
    fn oldest_server_that_selects_the_port_applies() {
        let pods = |port: serde_json::Value| json!({ "podSelector": {}, "port": port });
        let servers = [
            server("a-file", None, pods(80.into())),
            server("z-old", OLD, pods("http".into())),
            server("b-young", YOUNG, pods(80.into())),
            server("admin", OLD, pods(9990.into())),
        ];
        let labels = Labels::new();
        let ports = [("http".into(), 80), ("http".into(), 8080)];
        let pod = Workload::pod("shop", &labels, &ports);
        let applies = |port| server_of_port(&servers, pod, port).map(|it| &*it.name.name);
        assert_eq!(applies(80), Some("z-old"));
        assert_eq!(applies(8080), Some("z-old"));
        assert_eq!(applies(9990), Some("admin"));
        assert_eq!(applies(1), None);
        assert_eq!(servers[1].ports_of(pod), [80, 8080]);
        let first = |servers: &[Server]| {
            server_of_port(servers, pod, 80).map(|server| server.name.name.to_string())
        };
        // A Server without creation time is the youngest, whatever its name.
        assert_eq!(
            first(&[servers[0].clone(), servers[2].clone()]).as_deref(),
            Some("b-young")
        );
        let elsewhere = Workload::pod("other", &labels, &ports);
        assert_eq!(server_of_port(&servers, elsewhere, 80), None);
    }

    #[test]
    fn selector_of_one_kind_of_workloads_does_not_select_the_other() {
        let pods = server("pods", OLD, json!({ "podSelector": {}, "port": 80 }));
        let external = json!({ "externalWorkloadSelector": {}, "port": 80 });
        let external = server("external", OLD, external);
        let labels = Labels::new();
        let pod = Workload::pod("shop", &labels, &[]);
        let machine = Workload::external("shop", &labels, &[]);
        assert!(pods.selects(pod, 80) && !pods.selects(machine, 80));
        assert!(external.selects(machine, 80) && !external.selects(pod, 80));
    }
}
