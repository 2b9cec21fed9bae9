//! The status of a route: for each parent, whether it accepts the route, and whether the backends
//! of the route exist.
//!
//! These are the decisions by which the index attaches routes. A route that is not accepted has no
//! effect on the parent; a backend that is not resolved fails its share of the requests.

use mesh_objects::model::{
    BackendKind, Name, ParentKind, ParentRef, Protocol, ReportedBackend, ReportedObject,
    ReportedRoute, Server, Service,
};

use super::condition::{ACCEPTED, Condition, RESOLVED_REFS};
use super::objects::{RouteRank, StatusObjects, rank};

/// The status of a route for one of its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParentStatus {
    pub(crate) parent: ParentRef,
    pub(crate) conditions: Vec<Condition>,
}

const NO_MATCHING_PARENT: &str = "NoMatchingParent";
const CONFLICTED: &str = "RouteReasonConflicted";
pub(super) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";
const BACKEND_NOT_FOUND: &str = "BackendNotFound";
const INVALID_KIND: &str = "InvalidKind";

/// Returns the status for each parent of a supported kind.
pub(super) fn parents(
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
            Some(Ok(())) => Condition::positive(ACCEPTED),
            Some(Err(refusal)) => Condition::negative(ACCEPTED, refusal.reason, refusal.message),
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

/// Why a parent does not accept a route.
struct Refusal {
    reason: &'static str,
    message: String,
}

fn refuse(reason: &'static str, message: impl Into<String>) -> Result<(), Refusal> {
    Err(Refusal {
        reason,
        message: message.into(),
    })
}

/// Returns whether the parent accepts the route; `None` for a kind of parent of other controllers.
fn accepted(
    objects: &StatusObjects,
    object: &ReportedObject,
    route: &ReportedRoute,
    reference: &ParentRef,
) -> Option<Result<(), Refusal>> {
    let matching = match reference.kind {
        ParentKind::Server => {
            let server = objects.servers.get(&reference.name);
            match_server(object, route, reference, server.map(AsRef::as_ref))
        }
        ParentKind::Service => {
            let service = objects.services.get(&reference.name);
            match_service(reference, service.map(AsRef::as_ref))
        }
        ParentKind::EgressNetwork => match_egress_network(objects, reference),
        ParentKind::Other => return None,
    };
    let of_servers = route.unsupported_by_servers.as_ref();
    let of_parent = of_servers.filter(|_| reference.kind == ParentKind::Server);
    let problem = object.problem.as_ref().or(route.unsupported.as_ref());
    let supported = || match problem.or(of_parent) {
        Some(problem) => refuse(UNSUPPORTED_VALUE, &**problem),
        None => Ok(()),
    };
    let first = || match objects.conflicting(object, reference) {
        Some(other) => refuse(
            CONFLICTED,
            format!(
                "{} {} references the same parent and port, and takes precedence over a {}",
                other.kind.as_str(),
                other.name,
                object.kind.as_str(),
            ),
        ),
        None => Ok(()),
    };
    Some(matching.and_then(|()| supported()).and_then(|()| first()))
}

fn match_server(
    object: &ReportedObject,
    route: &ReportedRoute,
    reference: &ParentRef,
    server: Option<&Server>,
) -> Result<(), Refusal> {
    let namespace = &object.name.namespace;
    if let Some(mistake) = server_mistake(namespace, reference) {
        return refuse(NO_MATCHING_PARENT, mistake);
    }
    let Some(server) = server else {
        return refuse(
            NO_MATCHING_PARENT,
            format!("there is no Server {}", reference.name),
        );
    };
    if !rank(object.kind).is_some_and(|rank| attaches_to(rank, server.protocol)) {
        return refuse(
            NO_MATCHING_PARENT,
            format!(
                "Server {} has proxyProtocol {}, which {} do not apply to",
                server.name,
                protocol(server.protocol),
                plural(object.kind.as_str()),
            ),
        );
    }
    // Another reference with a mistake makes the whole route unusable.
    let mistake = route
        .parents
        .iter()
        .filter(|parent| parent.kind == ParentKind::Server)
        .find_map(|parent| server_mistake(namespace, parent));
    match mistake {
        Some(mistake) => refuse(UNSUPPORTED_VALUE, mistake),
        None => Ok(()),
    }
}

/// Returns why a reference cannot be that of any Server.
fn server_mistake(namespace: &str, reference: &ParentRef) -> Option<String> {
    let name = &reference.name;
    if *name.namespace != *namespace {
        return Some(format!(
            "Server {name} is in another namespace than the route; expected {namespace}"
        ));
    }
    if reference.port.is_some() {
        return Some(format!(
            "the reference to Server {name} has a port; remove it, the Server has one"
        ));
    }
    reference.section.is_some().then(|| {
        format!("the reference to Server {name} has a sectionName; remove it, Servers have none")
    })
}

/// Returns whether routes of a kind apply to connections of a Server's protocol.
fn attaches_to(rank: RouteRank, protocol: Protocol) -> bool {
    match rank {
        RouteRank::Grpc => protocol == Protocol::Grpc,
        RouteRank::Http => matches!(
            protocol,
            Protocol::Detect | Protocol::Http1 | Protocol::Http2
        ),
        RouteRank::Tls | RouteRank::Tcp => false,
    }
}

fn match_service(reference: &ParentRef, service: Option<&Service>) -> Result<(), Refusal> {
    let name = &reference.name;
    let refuse = |message: String| refuse(NO_MATCHING_PARENT, message);
    let Some(service) = service else {
        return refuse(format!("there is no Service {name}"));
    };
    if service.external_name {
        return refuse(format!(
            "Service {name} is of type ExternalName; expected one with a cluster IP"
        ));
    }
    if !service.has_traffic() {
        return refuse(format!(
            "Service {name} is headless; expected one with a cluster IP"
        ));
    }
    let port = match reference.port {
        Some(port) if !service.has_port(port) => {
            return refuse(format!(
                "Service {name} has no port {port}; it has {}",
                ports(service)
            ));
        }
        port => port,
    };
    // A section is the name of a port.
    let Some(section) = &reference.section else {
        return Ok(());
    };
    let mut named = service
        .ports
        .iter()
        .filter(|entry| entry.name.as_ref() == Some(section));
    if named.any(|entry| port.is_none_or(|port| port == entry.number)) {
        return Ok(());
    }
    let port = port.map_or_else(String::new, |port| format!(" {port}"));
    refuse(format!(
        "Service {name} has no port{port} with the name {section} of the sectionName"
    ))
}

fn match_egress_network(objects: &StatusObjects, reference: &ParentRef) -> Result<(), Refusal> {
    let name = &reference.name;
    let refuse = |message: String| refuse(NO_MATCHING_PARENT, message);
    let network = match objects.egress_network(name) {
        None => return refuse(format!("there is no EgressNetwork {name}")),
        Some(None) => return refuse(format!("EgressNetwork {name} is invalid")),
        Some(Some(network)) => network,
    };
    if network.overlap(&objects.cluster_networks).is_some() {
        return refuse(format!(
            "EgressNetwork {name} is not accepted, because it overlaps the cluster networks"
        ));
    }
    if reference.section.is_some() {
        return refuse(format!(
            "the reference to EgressNetwork {name} has a sectionName; remove it, EgressNetworks have none"
        ));
    }
    if reference.port.is_none() {
        return refuse(format!(
            "the reference to EgressNetwork {name} has no port; add that of the traffic"
        ));
    }
    Ok(())
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

/// Returns why requests to a backend fail. A backend without namespace is in that of the parent.
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

/// Returns the `proxyProtocol` of a Server.
pub(super) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Detect => "unknown",
        Protocol::Http1 => "HTTP/1",
        Protocol::Http2 => "HTTP/2",
        Protocol::Grpc => "gRPC",
        Protocol::Opaque => "opaque",
        Protocol::Tls => "TLS",
    }
}

fn plural(kind: &str) -> String {
    format!("{kind}s")
}
