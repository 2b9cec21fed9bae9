//! Policies by kind, and the workloads that a Server selects: pods or ExternalWorkloads.

use mesh_k8s::kinds::Pod;
use mesh_objects::model::{ExternalWorkload, PodRecord, Server};
use mesh_objects::policy::attachment::{RouteParents, grpc_route_of_server, is_attached_to_server};
use mesh_objects::policy::inbound::routes_in;
use mesh_objects::policy::server::Workload;
use mesh_objects::store::Store;

use crate::facts::{Fact, Facts, full_name};
use crate::output::count;

pub(super) enum Selected<'a> {
    Pod(&'a Pod, &'a PodRecord),
    External(&'a ExternalWorkload),
}

/// Returns the valid Servers of the scope.
pub(super) fn servers(facts: &Facts) -> Fact<impl Iterator<Item = &Server>> {
    let all = facts.store()?.servers();
    Ok(all.filter(|server| facts.scope.contains(&server.name.namespace)))
}

/// Returns the routes that apply to a Server.
pub(super) fn routes_of<'a>(
    store: &'a Store,
    server: &Server,
) -> impl Iterator<Item = RouteParents<'a>> {
    let all = || routes_in(store, &server.name.namespace);
    let grpc = grpc_route_of_server(server, all());
    all().filter(move |route| is_attached_to_server(*route, server, grpc))
}

/// Returns the workloads that a Server selects and that policies have an effect on: meshed pods,
/// and ExternalWorkloads, which all have a proxy.
pub(super) fn selected<'a>(facts: &'a Facts, server: &Server) -> Fact<Vec<Selected<'a>>> {
    let pods = facts.meshed_pods()?;
    let pods = pods.filter_map(|pod| Some(Selected::Pod(pod, facts.record(pod)?)));
    let external = facts.store()?.external_workloads_in(&server.name.namespace);
    let all = pods.chain(external.map(Selected::External));
    let selected = all.filter(|workload| server.selects_workload(workload.view()));
    Ok(selected.collect())
}

impl<'a> Selected<'a> {
    pub(super) fn view(&self) -> Workload<'a> {
        match *self {
            Self::Pod(_, record) => record.into(),
            Self::External(workload) => workload.into(),
        }
    }

    pub(super) fn title(&self) -> String {
        match self {
            Self::Pod(pod, _) => full_name(pod),
            Self::External(workload) => format!("ExternalWorkload {}", workload.name),
        }
    }

    /// Counts workloads of this kind, apart from this one.
    pub(super) fn more(&self, number: usize) -> String {
        match self {
            Self::Pod(..) => count(number, "pod more", "pods more"),
            Self::External(_) => count(number, "ExternalWorkload more", "ExternalWorkloads more"),
        }
    }
}
