//! The status of a route: for each parent, whether it accepts the route, and whether the backends
//! of the route exist.
//!
//! The index attaches routes by the same decisions. A route that is not accepted has no effect on
//! the parent; a backend that is not resolved fails its share of the requests.

use mesh_objects::model::{
    BackendKind, Name, ParentKind, ParentRef, ReportedBackend, ReportedObject, ReportedRoute,
    Service,
};
use mesh_objects::policy::attachment::{
    Refusal, attach_to_egress_network, attach_to_server, attach_to_service,
};

use super::condition::{ACCEPTED, Condition, RESOLVED_REFS};
use super::objects::{StatusObjects, parents};

/// The status of a route for one of its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParentStatus {
    pub(crate) parent: ParentRef,
    pub(crate) conditions: Vec<Condition>,
}

pub(super) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";
const BACKEND_NOT_FOUND: &str = "BackendNotFound";
const INVALID_KIND: &str = "InvalidKind";

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
    let unresolved = route.backends.iter().find_map(|backend| {
        let (reason, message) = unresolved(objects, backend, parent)?;
        let message = format!("{}: {message}", backend.field);
        Some(Condition::negative(RESOLVED_REFS, reason, message))
    });
    unresolved.unwrap_or_else(|| Condition::positive(RESOLVED_REFS))
}

/// Returns why requests to a backend fail. A backend without a namespace is in the parent's.
fn unresolved(
    objects: &StatusObjects,
    backend: &ReportedBackend,
    parent: &ParentRef,
) -> Option<(&'static str, String)> {
    let reference = &backend.reference;
    let name = Name {
        namespace: reference
            .namespace
            .as_ref()
            .unwrap_or(&parent.name.namespace)
            .clone(),
        name: reference.name.clone(),
    };
    match reference.kind {
        BackendKind::Service => {}
        BackendKind::EgressNetwork => return unresolved_network(objects, &name, parent),
        BackendKind::Other => {
            let kind = &backend.kind;
            let message = format!("{kind} {name} cannot be a backend; expected a Service");
            return Some((INVALID_KIND, message));
        }
    }
    let Some(service) = objects.services.get(&name) else {
        return Some((BACKEND_NOT_FOUND, format!("there is no Service {name}")));
    };
    if service.external_name {
        let message = format!("Service {name} is of type ExternalName, which has no endpoints");
        return Some((BACKEND_NOT_FOUND, message));
    }
    match reference.port {
        None => {
            let message = format!("has no port; Service {name} has {}", ports(service));
            return Some((BACKEND_NOT_FOUND, message));
        }
        Some(port) if !service.has_port(port) => {
            let message = format!(
                "Service {name} has no port {port}; it has {}",
                ports(service)
            );
            return Some((BACKEND_NOT_FOUND, message));
        }
        Some(_) => {}
    }
    let problem = backend.problem.as_ref()?;
    Some((UNSUPPORTED_VALUE, problem.to_string()))
}

/// Traffic to addresses outside of the cluster can only be forwarded to where it is going, so that
/// its own EgressNetwork is the only one that can be a backend.
fn unresolved_network(
    objects: &StatusObjects,
    name: &Name,
    parent: &ParentRef,
) -> Option<(&'static str, String)> {
    if objects.egress_network(name).is_none() {
        return Some((
            BACKEND_NOT_FOUND,
            format!("there is no EgressNetwork {name}"),
        ));
    }
    let is_parent = parent.kind == ParentKind::EgressNetwork && parent.name == *name;
    (!is_parent).then(|| {
        let message = format!("EgressNetwork {name} can only be a backend where it is the parent");
        (INVALID_KIND, message)
    })
}

fn ports(service: &Service) -> String {
    let ports: Vec<String> = service
        .ports
        .iter()
        .map(|port| port.number.to_string())
        .collect();
    if ports.is_empty() {
        return "none".to_owned();
    }
    ports.join(", ")
}
