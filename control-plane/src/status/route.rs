//! The status of a route: for each parent, whether it accepts the route, and whether the backends
//! of the route exist.
//!
//! The index attaches routes by the same decisions. A route that is not accepted has no effect on
//! the parent; a backend that is not resolved fails its share of the requests.

use mesh_objects::model::{Name, ParentKind, ParentRef, ReportedObject, ReportedRoute};
use mesh_objects::policy::attachment::{
    Refusal, attach_to_egress_network, attach_to_server, attach_to_service,
};
use mesh_objects::policy::backend::resolve;

use super::condition::{ACCEPTED, Condition, RESOLVED_REFS};
use super::objects::{StatusObjects, parents};

/// The status of a route for one of its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParentStatus {
    pub(crate) parent: ParentRef,
    pub(crate) conditions: Vec<Condition>,
}

pub(super) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";

/// Returns the status for each parent of a supported kind.
pub(super) fn statuses(
    objects: &StatusObjects,
    object: &ReportedObject,
    route: &ReportedRoute,
) -> Vec<ParentStatus> {
    let mut statuses: Vec<ParentStatus> = Vec::new();
    for parent in &route.parents {
        if statuses.iter().any(|status| status.parent == *parent) {
            continue;
        }
        let accepted = match accepted(objects, object, route, parent) {
            Some(Ok(())) => Condition {
                message: note(route, parent),
                ..Condition::positive(ACCEPTED)
            },
            Some(Err(refusal)) => {
                Condition::negative(refusal.condition(), refusal.reason(), refusal.to_string())
            }
            None => continue,
        };
        let mut conditions = vec![accepted];
        // The backends of requests to a Server are its pods.
        if parent.kind != ParentKind::Server {
            conditions.push(resolved_refs(objects, route, parent));
        }
        statuses.push(ParentStatus {
            parent: parent.clone(),
            conditions,
        });
    }
    statuses
}

/// Returns which filter of the accepted route some proxies leave out; empty if there is none.
fn note(route: &ReportedRoute, parent: &ParentRef) -> String {
    let left_out = match parent.kind {
        ParentKind::Server => &route.left_out_by_servers,
        _ => &route.left_out_by_linkerd,
    };
    left_out.as_deref().unwrap_or_default().to_owned()
}

/// Returns whether the parent accepts the route; `None` for a kind of parent of other controllers.
fn accepted(
    objects: &StatusObjects,
    object: &ReportedObject,
    route: &ReportedRoute,
    reference: &ParentRef,
) -> Option<Result<(), Refusal>> {
    let parents = parents(object)?;
    let matching = match reference.kind {
        ParentKind::Server => {
            let server = objects.servers.get(&reference.name).map(AsRef::as_ref);
            let grpc = server.and_then(|server| objects.grpc_route_of(server));
            attach_to_server(parents, reference, server, grpc)
        }
        ParentKind::Service => {
            let service = objects.services.get(&reference.name);
            attach_to_service(reference, service.map(AsRef::as_ref))
        }
        ParentKind::EgressNetwork => {
            let network = objects.egress_network(&reference.name);
            attach_to_egress_network(reference, network, &objects.cluster_networks)
        }
        ParentKind::Other => return None,
    };
    let of_servers = route.unsupported_by_servers.as_ref();
    let of_parent = of_servers.filter(|_| reference.kind == ParentKind::Server);
    let problem = object.problem.as_ref().or(route.unsupported.as_ref());
    let supported = || match problem.or(of_parent) {
        Some(problem) => Err(Refusal::Unsupported(problem.to_string())),
        None => Ok(()),
    };
    let first = || {
        let mut own = parents.claims().filter(|claim| claim.parent == reference);
        match own.next().and_then(|own| objects.conflicting(own)) {
            Some(other) => Err(other.refusal(object.kind.as_str())),
            None => Ok(()),
        }
    };
    Some(matching.and_then(|()| supported()).and_then(|()| first()))
}

/// Returns whether all backends exist. The condition names the first that does not.
fn resolved_refs(objects: &StatusObjects, route: &ReportedRoute, parent: &ParentRef) -> Condition {
    let service = |name: &Name| objects.services.get(name).map(|service| &**service);
    let has_network = |name: &Name| objects.egress_network(name).is_some();
    let unresolved = route.backends.iter().find_map(|backend| {
        let unresolved = resolve(backend, parent, service, has_network).err()?;
        let message = format!("{}: {unresolved}", backend.field);
        Some(Condition::negative(
            RESOLVED_REFS,
            unresolved.reason(),
            message,
        ))
    });
    unresolved.unwrap_or_else(|| Condition::positive(RESOLVED_REFS))
}
