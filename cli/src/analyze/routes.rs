//! Routes that attach nowhere, and their backends. The policy controller reports the same decisions
//! as conditions of the routes: [`mesh_objects::policy::attachment`] makes them.

use mesh_core::annotation::OPAQUE_PORTS;
use mesh_k8s::pod::ports;
use mesh_objects::model::{self, Name, Object as Record, ParentRef};
use mesh_objects::policy::attachment::{
    MistakenField, Refusal, RouteParents, RouteRank, attach_to_egress_network, attach_to_server,
    attach_to_service, conflict, grpc_route_of_server,
};
use serde_json::Value;

use super::finding::Finding;
use super::objects::{GATEWAY, Object, Objects, POLICY, list, text};

/// The kinds of routes in the order of precedence for one parent.
const ROUTES: [(&str, &str, RouteRank); 5] = [
    (GATEWAY, "GRPCRoute", RouteRank::Grpc),
    (POLICY, "HTTPRoute", RouteRank::Http),
    (GATEWAY, "HTTPRoute", RouteRank::Http),
    (GATEWAY, "TLSRoute", RouteRank::Tls),
    (GATEWAY, "TCPRoute", RouteRank::Tcp),
];

/// A parent in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parent {
    pub(super) kind: ParentKind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) port: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ParentKind {
    Server,
    Service,
    EgressNetwork,
}

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for (route, _) in routes(objects) {
        if let Some(parents) = route.record().and_then(Record::route_parents) {
            for at in 0..parents.parents.len() {
                attachment(objects, route, parents, at, findings);
            }
        }
        if route.list("parentRefs").is_empty() {
            findings.push(Finding::new(
                route,
                "spec.parentRefs",
                "attaches-nowhere",
                "has no parents, so it applies to no traffic",
                "add a Service, Server or EgressNetwork",
            ));
        }
        backends(objects, route, findings);
    }
}

/// Returns all routes.
pub(super) fn routes(objects: &Objects) -> impl Iterator<Item = (&Object, RouteRank)> {
    ROUTES
        .iter()
        .flat_map(|(group, kind, rank)| objects.of(group, kind).map(move |object| (object, *rank)))
}

/// Returns a parent of a kind of the mesh.
pub(super) fn parent(route: &Object, reference: &Value) -> Option<Parent> {
    let group = text(&reference["group"]);
    let kind = match (
        &*group.to_ascii_lowercase(),
        &*text(&reference["kind"]).to_ascii_lowercase(),
    ) {
        (POLICY, "server") => ParentKind::Server,
        // The Gateway API's group is the default, so the empty group has to be written.
        ("" | "core", "service") if reference["group"].is_string() => ParentKind::Service,
        (POLICY, "egressnetwork") => ParentKind::EgressNetwork,
        _ => return None,
    };
    Some(Parent {
        kind,
        namespace: reference["namespace"]
            .as_str()
            .unwrap_or(&route.namespace)
            .to_owned(),
        name: text(&reference["name"]).to_owned(),
        port: reference["port"].as_u64(),
    })
}

/// Reports why a parent does not accept the route.
fn attachment(
    objects: &Objects,
    route: &Object,
    parents: RouteParents<'_>,
    at: usize,
    findings: &mut Vec<Finding>,
) {
    let Some(reference) = parents.parents.get(at) else {
        return;
    };
    let Name { namespace, name } = &reference.name;
    let field = format!("spec.parentRefs[{at}]");
    let attached = match reference.kind {
        model::ParentKind::Server => {
            let server = objects.find(POLICY, "Server", namespace, name);
            // An invalid Server is reported itself, and its last valid version is not known.
            if server.is_some_and(|server| server.server().is_none()) {
                return;
            }
            let server = server.and_then(Object::server);
            let grpc = server.and_then(|it| grpc_route_of_server(it, route_parents(objects)));
            attach_to_server(parents, reference, server, grpc)
        }
        model::ParentKind::Service => {
            let service = objects.find("", "Service", namespace, name);
            if service.is_some_and(|service| service.service().is_none()) {
                return;
            }
            attach_to_service(reference, service.and_then(Object::service))
        }
        model::ParentKind::EgressNetwork => {
            let network = objects.find(POLICY, "EgressNetwork", namespace, name);
            let network = network.map(Object::egress_network);
            // The networks of the cluster are not known.
            attach_to_egress_network(reference, network, &[])
        }
        // Parents of other controllers are not known here.
        model::ParentKind::Other => return,
    };
    match attached {
        Ok(()) => opaque(objects, route, reference, &field, findings),
        Err(refusal) => refused(objects, route, &refusal, &field, findings),
    }
    let claims = route_parents(objects).flat_map(RouteParents::claims);
    let mut own = parents.claims().filter(|claim| claim.parent == reference);
    if reference.kind != model::ParentKind::Server
        && let Some(own) = own.next()
        && let Some(other) = conflict(own.rank, reference, [namespace, &route.namespace], claims)
    {
        findings.push(conflicting(route, other.kind.as_str(), other.route, field));
    }
}

/// Phrases a refusal as a finding.
fn refused(
    objects: &Objects,
    route: &Object,
    refusal: &Refusal,
    field: &str,
    findings: &mut Vec<Finding>,
) {
    let text = refusal.to_string();
    let (part, problem, fix) = match refusal {
        Refusal::Mistake(mistake) => match mistake.field {
            MistakenField::Namespace => (
                ".namespace",
                format!("Server {} is in another namespace", mistake.server),
                "create the route in the namespace of the Server".to_owned(),
            ),
            MistakenField::Port | MistakenField::SectionName => (
                if mistake.field == MistakenField::Port {
                    ".port"
                } else {
                    ".sectionName"
                },
                "makes the whole route unusable, because Servers have none".to_owned(),
                "remove it".to_owned(),
            ),
        },
        // The reference with the mistake is reported, the invalid object too.
        Refusal::OtherMistake(_) | Refusal::InvalidNetwork(_) => return,
        Refusal::NoParent { kind, .. } => {
            let group = if *kind == "Service" { "" } else { POLICY };
            (".name", text, objects.fix_of_missing(group, kind))
        }
        Refusal::Protocol {
            server,
            protocol,
            route,
        } => (
            "",
            format!(
                "{route}s do not apply to Server {} with proxyProtocol {protocol}",
                server.name
            ),
            "change the proxyProtocol of the Server, or the kind of the route".to_owned(),
        ),
        Refusal::ExternalName(name) | Refusal::Headless(name) => (
            "",
            format!("Service {name} has no cluster IP"),
            "give it one: routes apply to traffic to cluster IPs".to_owned(),
        ),
        Refusal::NoPort { .. } => (".port", text, "use a port of the Service".to_owned()),
        Refusal::NoPortName {
            service, section, ..
        } => (
            ".sectionName",
            format!("Service {service} has no such port with the name {section}"),
            "use the name of a port of the Service, or remove it".to_owned(),
        ),
        Refusal::SectionOfNetwork(_) => (
            ".sectionName",
            "makes the reference unusable, because EgressNetworks have none".to_owned(),
            "remove it".to_owned(),
        ),
        Refusal::NoPortOfNetwork(_) => (
            ".port",
            "is missing, which an EgressNetwork requires".to_owned(),
            "add the port of the traffic".to_owned(),
        ),
        Refusal::OverlappingNetwork(_) | Refusal::Unsupported(_) => {
            ("", text, "correct it".to_owned())
        }
        Refusal::Conflict {
            kind, route: other, ..
        } => {
            findings.push(conflicting(route, kind, other, field.to_owned()));
            return;
        }
    };
    let field = format!("{field}{part}");
    findings.push(Finding::new(route, field, "attaches-nowhere", problem, fix));
}

/// Reports a route of requests for a port whose connections are not parsed.
fn opaque(
    objects: &Objects,
    route: &Object,
    reference: &ParentRef,
    field: &str,
    findings: &mut Vec<Finding>,
) {
    let Name { namespace, name } = &reference.name;
    let kind = route.record().and_then(Record::route_parents);
    let rank = kind.and_then(|parents| RouteRank::new(parents.kind));
    if reference.kind != model::ParentKind::Service
        || !matches!(rank, Some(RouteRank::Grpc | RouteRank::Http))
    {
        return;
    }
    let service = objects.find("", "Service", namespace, name);
    let port = service.and_then(|service| opaque_port(service, reference.port.map(u64::from)));
    if let Some(port) = port {
        findings.push(Finding::new(
            route,
            field,
            "no-effect",
            format!("port {port} of Service {namespace}/{name} is opaque, so the route does not apply there"),
            format!(
                "remove {port} from {OPAQUE_PORTS}: kubectl -n {namespace} edit service {name}; or delete the route"
            ),
        ));
    }
}

/// Reports a route whose parent has a route of a kind with precedence, for the same clients.
fn conflicting(route: &Object, kind: &str, other: &Name, field: String) -> Finding {
    Finding::new(
        route,
        field,
        "conflict",
        format!(
            "{kind} {other} references the same parent and port and takes precedence, so this route has no effect there"
        ),
        "use one kind of route for the port",
    )
}

/// Returns the parents of all valid routes.
pub(super) fn route_parents(objects: &Objects) -> impl Iterator<Item = RouteParents<'_>> + Clone {
    let records = objects.iter().filter_map(Object::record);
    records.filter_map(Record::route_parents)
}

/// Returns the parents of a route that are of the mesh, with their positions.
pub(super) fn parents(route: &Object) -> impl Iterator<Item = (usize, Parent)> {
    let references = route.list("parentRefs").iter().enumerate();
    references.filter_map(move |(at, reference)| Some((at, parent(route, reference)?)))
}

fn backends(objects: &Objects, route: &Object, findings: &mut Vec<Finding>) {
    // A backend without a namespace is in the parent's namespace.
    let parents: Vec<Parent> = parents(route).map(|(_, parent)| parent).collect();
    let Some(parent) = parents
        .iter()
        .find(|parent| parent.kind != ParentKind::Server)
    else {
        return;
    };
    for (rule_at, rule) in route.list("rules").iter().enumerate() {
        let all = list(&rule["backendRefs"]);
        if !all.is_empty() && all.iter().all(|backend| backend["weight"] == 0) {
            findings.push(Finding::new(
                route,
                format!("spec.rules[{rule_at}].backendRefs"),
                "no-backend",
                "all have weight 0, so every request of the rule fails",
                "give one of them a weight, or remove backendRefs to use the parent",
            ));
        }
        for (at, backend) in all.iter().enumerate() {
            let field = format!("spec.rules[{rule_at}].backendRefs[{at}]");
            let namespace = backend["namespace"].as_str().unwrap_or(&parent.namespace);
            let name = text(&backend["name"]);
            let kind = backend["kind"].as_str().unwrap_or("Service");
            let is_core = matches!(text(&backend["group"]), "" | "core");
            let mut report = |field: String, problem: String, fix: &str| {
                let problem = format!("{problem}, so requests to this backend fail");
                findings.push(Finding::new(
                    route,
                    field,
                    "missing-reference",
                    problem,
                    fix,
                ));
            };
            if text(&backend["group"]) == POLICY && kind == "EgressNetwork" {
                let own = parents.iter().any(|parent| {
                    parent.kind == ParentKind::EgressNetwork
                        && parent.namespace == namespace
                        && parent.name == name
                });
                if !own {
                    let problem =
                        format!("EgressNetwork {namespace}/{name} is not a parent of the route");
                    report(
                        field,
                        problem,
                        "use a backend that is a Service or a parent",
                    );
                }
                continue;
            }
            if !is_core || kind != "Service" {
                let problem = format!("{kind} {namespace}/{name} cannot be a backend");
                report(format!("{field}.kind"), problem, "use a Service");
                continue;
            }
            let Some(service) = objects.find("", "Service", namespace, name) else {
                let problem = format!("there is no Service {namespace}/{name}");
                let fix = objects.fix_of_missing("", "Service");
                report(format!("{field}.name"), problem, &fix);
                continue;
            };
            match backend["port"].as_u64() {
                None => report(
                    format!("{field}.port"),
                    "is missing".to_owned(),
                    "add a port of the Service",
                ),
                port => {
                    if let Some(problem) = missing_port(service, port) {
                        report(
                            format!("{field}.port"),
                            problem,
                            "use a port of the Service",
                        );
                    }
                }
            }
        }
    }
}

/// Returns the first port of the parent whose annotation makes it opaque: the given one, or any.
/// Without the annotation the default list applies, of ports that no HTTP server uses.
fn opaque_port(service: &Object, port: Option<u64>) -> Option<u64> {
    let listed = service.json["metadata"]["annotations"][OPAQUE_PORTS].as_str()?;
    let opaque = ports::resolve_list(None, listed);
    let all = service.list("ports").iter();
    let mut all = all.filter_map(|entry| entry["port"].as_u64());
    all.find(|number| {
        port.is_none_or(|port| port == *number)
            && u16::try_from(*number).is_ok_and(|number| opaque.contains(number))
    })
}

fn missing_port(service: &Object, port: Option<u64>) -> Option<String> {
    let port = port?;
    let ports: Vec<u64> = service
        .list("ports")
        .iter()
        .filter_map(|entry| entry["port"].as_u64())
        .collect();
    if ports.contains(&port) {
        return None;
    }
    let known: Vec<String> = ports.iter().map(u64::to_string).collect();
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Some(format!(
        "Service {} has no port {port}; it has {known}",
        service.full_name()
    ))
}
