//! Policies by kind, and the workloads that a Server selects: pods or ExternalWorkloads.

use std::sync::Arc;

use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod::ports;
use mesh_objects::convert;
use mesh_objects::model::{ExternalWorkload, Object, Server, WorkloadSelector};
use mesh_objects::policy::attachment::{RouteParents, grpc_route_of_server, is_attached_to_server};
use mesh_objects::policy::server::Workload;
use serde_json::Value;

use crate::facts::{Fact, Facts, fact_ref, full_name};
use crate::output::count;

pub(super) enum Selected<'a> {
    Pod(&'a Pod),
    External(Arc<ExternalWorkload>),
}

/// Returns the valid Servers.
pub(super) fn servers(facts: &Facts) -> Fact<Vec<Arc<Server>>> {
    records(facts, "Server", |object| match object {
        Object::Server(server) => Some(server),
        _ => None,
    })
}

/// Returns the records of the valid objects of a kind.
pub(super) fn records<T>(
    facts: &Facts,
    kind: &str,
    record: impl Fn(Object) -> Option<T>,
) -> Fact<Vec<T>> {
    let all = of_kind(facts, kind)?.into_iter();
    let valid = all.filter_map(convert::valid);
    Ok(valid.filter_map(record).collect())
}

/// A route with its object as it was written.
pub(super) type WrittenRoute<'a> = (&'a Value, Object);

/// Returns the valid HTTPRoutes and GRPCRoutes.
pub(super) fn routes(facts: &Facts) -> Fact<Vec<WrittenRoute<'_>>> {
    let mut all = Vec::new();
    for kind in ["HTTPRoute", "GRPCRoute"] {
        let values = of_kind(facts, kind)?.into_iter();
        all.extend(values.filter_map(|value| Some((value, convert::valid(value)?))));
    }
    Ok(all)
}

/// Returns the routes that apply to a Server.
pub(super) fn routes_of<'a>(
    server: &Server,
    routes: &'a [WrittenRoute<'a>],
) -> impl Iterator<Item = (&'a Value, RouteParents<'a>)> {
    let parents = |(json, route): &'a WrittenRoute<'a>| Some((*json, route.route_parents()?));
    let all = || routes.iter().filter_map(parents);
    let grpc = grpc_route_of_server(server, all().map(|(_, route)| route));
    all().filter(move |(_, route)| is_attached_to_server(*route, server, grpc))
}

/// Returns the workloads that a Server selects and that policies have an effect on: meshed pods,
/// and ExternalWorkloads, which all have a proxy.
pub(super) fn selected<'a>(facts: &'a Facts, server: &Server) -> Fact<Vec<Selected<'a>>> {
    let pods = facts.meshed_pods()?.map(Selected::Pod);
    let mut all: Vec<Selected<'_>> = pods.collect();
    if matches!(server.workloads, WorkloadSelector::ExternalWorkloads(_)) {
        all.extend(records(facts, "ExternalWorkload", |object| match object {
            Object::ExternalWorkload(workload) => Some(Selected::External(workload)),
            _ => None,
        })?);
    }
    all.retain(|workload| workload.is_of(server));
    Ok(all)
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
        self.read(|workload| server.selects_workload(workload))
    }

    /// Returns the ports of the workload that the Server selects.
    pub(super) fn ports(&self, server: &Server) -> Vec<u16> {
        self.read(|workload| server.ports_of(workload))
    }

    fn read<T>(&self, read: impl FnOnce(Workload<'_>) -> T) -> T {
        match self {
            Self::Pod(pod) => {
                let spec = pod.spec.as_ref();
                let names = spec.map(ports::names).unwrap_or_default();
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                read(Workload::pod(namespace, pod.labels(), &names))
            }
            Self::External(workload) => read((&**workload).into()),
        }
    }

    pub(super) fn title(&self) -> String {
        match self {
            Self::Pod(pod) => full_name(pod),
            Self::External(workload) => format!("ExternalWorkload {}", workload.name),
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
