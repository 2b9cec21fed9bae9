//! Routes that attach nowhere, and their backends. The policy controller reports the same decisions
//! as conditions of the routes.

use mesh_core::annotation::OPAQUE_PORTS;
use mesh_k8s::pod::ports;
use serde_json::Value;

use super::finding::Finding;
use super::objects::{GATEWAY, Object, Objects, POLICY, list, text};

/// The kinds of routes in the order of precedence for one parent.
const ROUTES: [(&str, &str, Rank); 5] = [
    (GATEWAY, "GRPCRoute", Rank::Grpc),
    (POLICY, "HTTPRoute", Rank::Http),
    (GATEWAY, "HTTPRoute", Rank::Http),
    (GATEWAY, "TLSRoute", Rank::Tls),
    (GATEWAY, "TCPRoute", Rank::Tcp),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Grpc,
    Http,
    Tls,
    Tcp,
}

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
    for (route, rank) in routes(objects) {
        for (at, reference) in route.list("parentRefs").iter().enumerate() {
            // Parents of other controllers are not known here.
            if let Some(parent) = parent(route, reference) {
                let field = format!("spec.parentRefs[{at}]");
                attachment(objects, route, rank, &parent, reference, &field, findings);
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
pub(super) fn routes(objects: &Objects) -> impl Iterator<Item = (&Object, Rank)> {
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

fn attachment(
    objects: &Objects,
    route: &Object,
    rank: Rank,
    parent: &Parent,
    reference: &Value,
    field: &str,
    findings: &mut Vec<Finding>,
) {
    let Parent {
        namespace, name, ..
    } = parent;
    let mut report = |field: String, problem: String, fix: &str| {
        findings.push(Finding::new(route, field, "attaches-nowhere", problem, fix));
    };
    match parent.kind {
        ParentKind::Server => {
            if *namespace != route.namespace {
                let problem = format!("Server {namespace}/{name} is in another namespace");
                let fix = "create the route in the namespace of the Server";
                return report(format!("{field}.namespace"), problem, fix);
            }
            for key in ["port", "sectionName"] {
                if !reference[key].is_null() {
                    let problem =
                        "makes the whole route unusable, because Servers have none".to_owned();
                    return report(format!("{field}.{key}"), problem, "remove it");
                }
            }
            let Some(server) = objects.find(POLICY, "Server", namespace, name) else {
                let problem = format!("there is no Server {namespace}/{name}");
                let fix = objects.fix_of_missing(POLICY, "Server");
                return report(format!("{field}.name"), problem, &fix);
            };
            let protocol = server.spec()["proxyProtocol"].as_str().unwrap_or("unknown");
            let applies = match rank {
                Rank::Grpc => protocol == "gRPC",
                Rank::Http => matches!(protocol, "unknown" | "HTTP/1" | "HTTP/2"),
                Rank::Tls | Rank::Tcp => false,
            };
            if !applies {
                let kind = &route.kind;
                let problem =
                    format!("{kind}s do not apply to Server {name} with proxyProtocol {protocol}");
                report(
                    field.to_owned(),
                    problem,
                    "change the proxyProtocol of the Server, or the kind of the route",
                );
            }
        }
        ParentKind::Service => {
            let Some(service) = objects.find("", "Service", namespace, name) else {
                let problem = format!("there is no Service {namespace}/{name}");
                let fix = objects.fix_of_missing("", "Service");
                return report(format!("{field}.name"), problem, &fix);
            };
            if text(&service.spec()["type"]) == "ExternalName"
                || text(&service.spec()["clusterIP"]) == "None"
            {
                let problem = format!("Service {namespace}/{name} has no cluster IP");
                return report(
                    field.to_owned(),
                    problem,
                    "give it one: routes apply to traffic to cluster IPs",
                );
            }
            if let Some(section) = reference["sectionName"].as_str()
                && !has_named_port(service, section, parent.port)
            {
                let problem =
                    format!("Service {namespace}/{name} has no such port with the name {section}");
                let fix = "use the name of a port of the Service, or remove it";
                return report(format!("{field}.sectionName"), problem, fix);
            }
            if let Some(problem) = missing_port(service, parent.port) {
                report(
                    format!("{field}.port"),
                    problem,
                    "use a port of the Service",
                );
            } else if matches!(rank, Rank::Grpc | Rank::Http)
                && let Some(port) = opaque_port(service, parent.port)
            {
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
        ParentKind::EgressNetwork => {
            if objects
                .find(POLICY, "EgressNetwork", namespace, name)
                .is_none()
            {
                let problem = format!("there is no EgressNetwork {namespace}/{name}");
                let fix = objects.fix_of_missing(POLICY, "EgressNetwork");
                return report(format!("{field}.name"), problem, &fix);
            }
            if parent.port.is_none() {
                let problem = "is missing, which an EgressNetwork requires".to_owned();
                report(
                    format!("{field}.port"),
                    problem,
                    "add the port of the traffic",
                );
            }
        }
    }
    conflict(objects, route, rank, parent, field, findings);
}

/// Reports a route whose parent has a route of a kind with precedence, for the same clients.
fn conflict(
    objects: &Objects,
    route: &Object,
    rank: Rank,
    parent: &Parent,
    field: &str,
    findings: &mut Vec<Finding>,
) {
    if parent.kind == ParentKind::Server {
        return;
    }
    let other = routes(objects).find(|(other, other_rank)| {
        *other_rank < rank
            && [&route.namespace, &parent.namespace].contains(&&other.namespace)
            && parents(other).any(|(_, it)| it == *parent)
    });
    if let Some((other, _)) = other {
        findings.push(Finding::new(
            route,
            field,
            "conflict",
            format!(
                "{} {} references the same parent and port and takes precedence, so this route has no effect there",
                other.kind,
                other.full_name()
            ),
            "use one kind of route for the port",
        ));
    }
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

/// Returns whether a Service has a port with this name, and number if there is one.
fn has_named_port(service: &Object, name: &str, number: Option<u64>) -> bool {
    service
        .list("ports")
        .iter()
        .any(|entry| entry["name"] == name && number.is_none_or(|number| entry["port"] == number))
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
