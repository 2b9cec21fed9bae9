//! Policies by kind, and what a Server selects: pods or ExternalWorkloads.

use mesh_k8s::crd::{ExternalWorkload, PortRef, Server};
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod::ports;
use mesh_k8s::select;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::facts::{Fact, Facts, fact_ref, full_name};
use crate::output::count;

pub(super) enum Selected<'a> {
    Pod(&'a Pod),
    External(Box<ExternalWorkload>),
}

/// Returns what a Server selects and policies have an effect on: meshed pods, and
/// ExternalWorkloads, which all have a proxy.
pub(super) fn selected<'a>(facts: &'a Facts, server: &Server) -> Fact<Vec<Selected<'a>>> {
    let pods = facts.meshed_pods()?.map(Selected::Pod);
    let mut all: Vec<Selected<'_>> = pods.collect();
    if server.spec.external_workload_selector.is_some() {
        let external: Vec<ExternalWorkload> = read(facts, "ExternalWorkload")?;
        all.extend(external.into_iter().map(Box::new).map(Selected::External));
    }
    all.retain(|workload| workload.is_of(server));
    Ok(all)
}

/// Returns the valid objects of a kind.
pub(super) fn read<T: DeserializeOwned>(facts: &Facts, kind: &str) -> Fact<Vec<T>> {
    let all = of_kind(facts, kind)?;
    Ok(all
        .into_iter()
        .filter_map(|value| serde_json::from_value(value.clone()).ok())
        .collect())
}

pub(super) fn of_kind<'a>(facts: &'a Facts, kind: &str) -> Fact<Vec<&'a Value>> {
    let all = fact_ref(&facts.objects.policies)?.iter();
    Ok(all
        .filter(|value| {
            value["kind"] == kind
                && facts
                    .scope
                    .contains(value["metadata"]["namespace"].as_str().unwrap_or_default())
        })
        .collect())
}

impl Selected<'_> {
    /// Returns whether the Server selects the workload.
    pub(super) fn is_of(&self, server: &Server) -> bool {
        let (namespace, labels, selector) = match self {
            Self::Pod(pod) => (
                pod.namespace(),
                pod.metadata.labels.as_ref(),
                &server.spec.pod_selector,
            ),
            Self::External(workload) => (
                workload.namespace(),
                workload.metadata.labels.as_ref(),
                &server.spec.external_workload_selector,
            ),
        };
        let selector = selector.as_ref();
        namespace == server.namespace()
            && selector.is_some_and(|selector| select::matches(selector, labels))
    }

    /// Returns the numbers of the workload's ports that the Server's port stands for.
    pub(super) fn ports(&self, server: &Server) -> Vec<u16> {
        let name = match &server.spec.port {
            PortRef::Number(port) => return vec![*port],
            PortRef::Name(name) => name,
        };
        match self {
            Self::Pod(pod) => {
                let spec = pod.spec.as_ref();
                spec.map(|spec| ports::named(spec, name))
                    .unwrap_or_default()
            }
            Self::External(workload) => {
                let ports = workload.spec.ports.iter().flatten();
                let named = ports.filter(|port| port.is_tcp() && port.name.as_ref() == Some(name));
                named.map(|port| port.port).collect()
            }
        }
    }

    pub(super) fn title(&self) -> String {
        match self {
            Self::Pod(pod) => full_name(pod),
            Self::External(workload) => format!(
                "ExternalWorkload {}/{}",
                workload.namespace().unwrap_or_default(),
                workload.name_any()
            ),
        }
    }

    /// Counts workloads of this kind, apart from this one.
    pub(super) fn more(&self, number: usize) -> String {
        match self {
            Self::Pod(_) => count(number, "pod more", "pods more"),
            Self::External(_) => count(number, "ExternalWorkload more", "ExternalWorkloads more"),
        }
    }
}
