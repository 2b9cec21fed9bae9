//! Routes that attach nowhere, and their backends. The policy controller reports the same decisions
//! as conditions of the routes: [`mesh_objects::policy::attachment`] makes them.

use std::collections::HashMap;

use mesh_core::annotation::OPAQUE_PORTS;
use mesh_core::ports::PortSet;
use mesh_objects::convert;
use mesh_objects::model::{
    Name, Object as Record, ParentKind, ParentRef, PortProtocol, ReportedKind, ReportedRoute,
    Server, Service,
};
use mesh_objects::policy::attachment::{
    Claim, MistakenField, Refusal, RouteParents, RouteRank, attach_to_egress_network,
    attach_to_server, attach_to_service, conflict, grpc_route_of_server, is_port,
};
use mesh_objects::policy::backend::{Unresolved, resolve};

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, list};

const ROUTES: [ReportedKind; 5] = [
    ReportedKind::GatewayGrpcRoute,
    ReportedKind::PolicyHttpRoute,
    ReportedKind::GatewayHttpRoute,
    ReportedKind::GatewayTlsRoute,
    ReportedKind::GatewayTcpRoute,
];

/// The valid routes by their references, so that the time of an analysis is linear in the routes.
#[derive(Default)]
pub(super) struct Attachments<'a> {
    of_servers: HashMap<&'a Name, Vec<RouteParents<'a>>>,
    /// The GRPCRoutes that take precedence over HTTPRoutes.
    grpc_of_servers: HashMap<&'a Name, &'a Name>,
    /// The first claim of each namespace to a parent. Others have no precedence over any route.
    claims: HashMap<(&'a ParentRef, &'a str), Claim<'a>>,
}

impl<'a> Attachments<'a> {
    pub(super) fn new(objects: &'a Objects) -> Self {
        let mut all = Self::default();
        let records = objects.iter().filter_map(Object::record);
        for route in records.filter_map(Record::route_parents) {
            for claim in route.claims() {
                let key = (claim.parent, &*claim.route.namespace);
                let first = all.claims.entry(key).or_insert(claim);
                if claim.precedence() < first.precedence() {
                    *first = claim;
                }
            }
            for reference in route.parents {
                if reference.kind == ParentKind::Server {
                    all.of_servers
                        .entry(&reference.name)
                        .or_default()
                        .push(route);
                }
            }
        }
        for server in objects.of(POLICY, "Server").filter_map(Object::server) {
            if let Some(grpc) = grpc_route_of_server(server, all.of_server(server)) {
                all.grpc_of_servers.insert(&server.name, grpc);
            }
        }
        all
    }

    /// Returns the routes that reference a Server.
    pub(super) fn of_server(
        &self,
        server: &Server,
    ) -> impl Iterator<Item = RouteParents<'a>> + Clone {
        let routes = self.of_servers.get(&server.name);
        routes.map_or(&[][..], Vec::as_slice).iter().copied()
    }

    fn claims(&self, reference: &ParentRef, clients: [&str; 2]) -> impl Iterator<Item = Claim<'a>> {
        let claims = clients.map(|namespace| self.claims.get(&(reference, namespace)).copied());
        claims.into_iter().flatten()
    }
}

pub(super) fn analyze(
    objects: &Objects,
    attachments: &Attachments<'_>,
    findings: &mut Vec<Finding>,
) {
    for (route, kind) in routes(objects) {
        if let Some(parents) = route.record().and_then(Record::route_parents) {
            for at in 0..parents.parents.len() {
                attachment(objects, attachments, route, parents, at, findings);
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
        without_backend(route, findings);
        if let Some(written) = convert::reported_route(kind, &route.json) {
            backends(objects, route, &written, findings);
        }
    }
}

/// Returns all routes, in the order of the precedence of their kinds for one parent.
pub(super) fn routes(objects: &Objects) -> impl Iterator<Item = (&Object, ReportedKind)> {
    ROUTES.into_iter().flat_map(|kind| {
        let all = objects.of(kind.group(), kind.as_str());
        all.map(move |object| (object, kind))
    })
}

/// Reports why a parent does not accept the route.
fn attachment(
    objects: &Objects,
    attachments: &Attachments<'_>,
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
        ParentKind::Server => {
            let server = objects.find(POLICY, "Server", namespace, name);
            // An invalid Server is reported itself, and its last valid version is not known.
            if server.is_some_and(|server| server.server().is_none()) {
                return;
            }
            let server = server.and_then(Object::server);
            let grpc = attachments.grpc_of_servers.get(&reference.name).copied();
            attach_to_server(parents, reference, server, grpc)
        }
        ParentKind::Service => {
            let service = objects.find("", "Service", namespace, name);
            if service.is_some_and(|service| service.service().is_none()) {
                return;
            }
            attach_to_service(reference, service.and_then(Object::service))
        }
        ParentKind::EgressNetwork => {
            let network = objects.find(POLICY, "EgressNetwork", namespace, name);
            let network = network.map(Object::egress_network);
            // The networks of the cluster are not known.
            attach_to_egress_network(reference, network, &[])
        }
        // Parents of other controllers are not known here.
        ParentKind::Other => return,
    };
    match attached {
        Ok(()) => opaque(objects, route, reference, &field, findings),
        Err(refusal) => refused(objects, route, &refusal, &field, findings),
    }
    let clients: [&str; 2] = [namespace, &route.namespace];
    if let Some(rank) = RouteRank::new(parents.kind)
        && let claims = attachments.claims(reference, clients)
        && let Some(other) = conflict(rank, reference, clients, claims)
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
    if reference.kind != ParentKind::Service
        || !matches!(rank, Some(RouteRank::Grpc | RouteRank::Http))
    {
        return;
    }
    let service = objects.find("", "Service", namespace, name);
    let service = service.and_then(Object::service);
    if let Some(port) = service.and_then(|service| opaque_port(service, reference)) {
        findings.push(Finding::new(
            route,
            field,
            "no-effect",
            format!("port {port} of Service {namespace}/{name} is opaque, so the route does not apply there"),
            format!(
                "remove {port} from {OPAQUE_PORTS}, or correct its appProtocol: kubectl -n {namespace} edit service {name}; or delete the route"
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

/// Returns the parents of a valid route; an invalid one has no effect.
pub(super) fn parents(route: &Object) -> &[ParentRef] {
    let parents = route.record().and_then(Record::route_parents);
    parents.map_or(&[], |route| route.parents)
}

/// Reports rules whose backends get no request.
fn without_backend(route: &Object, findings: &mut Vec<Finding>) {
    for (at, rule) in route.list("rules").iter().enumerate() {
        let all = list(&rule["backendRefs"]);
        if !all.is_empty() && all.iter().all(|backend| backend["weight"] == 0) {
            findings.push(Finding::new(
                route,
                format!("spec.rules[{at}].backendRefs"),
                "no-backend",
                "all have weight 0, so every request of the rule fails",
                "give one of them a weight, or remove backendRefs to use the parent",
            ));
        }
    }
}

/// Reports backends whose requests fail. The backends of requests to a Server are its pods.
fn backends(
    objects: &Objects,
    route: &Object,
    written: &ReportedRoute,
    findings: &mut Vec<Finding>,
) {
    let find = |group: &str, kind: &str, name: &Name| {
        objects.find(group, kind, &name.namespace, &name.name)
    };
    let service = |name: &Name| find("", "Service", name).and_then(Object::service);
    let has_network = |name: &Name| find(POLICY, "EgressNetwork", name).is_some();
    let parents = written.parents.iter();
    let parents = parents.filter(|parent| parent.kind.has_clients());
    for (parent, backend) in parents.flat_map(|it| written.backends.iter().map(move |b| (it, b))) {
        let Err(unresolved) = resolve(backend, parent, service, has_network) else {
            continue;
        };
        let text = unresolved.to_string();
        let (part, problem, fix) = match &unresolved {
            // An object that cannot be read is reported itself.
            Unresolved::Missing {
                kind: "Service",
                name,
            } if find("", "Service", name).is_some() => {
                continue;
            }
            Unresolved::Missing { kind, .. } => {
                let group = if *kind == "Service" { "" } else { POLICY };
                (".name", text, objects.fix_of_missing(group, kind))
            }
            Unresolved::Kind { kind, name } => (
                ".kind",
                format!("{kind} {name} cannot be a backend"),
                "use a Service".to_owned(),
            ),
            Unresolved::NotParent(name) => (
                "",
                format!("EgressNetwork {name} is not a parent of the route"),
                "use a backend that is a Service or a parent".to_owned(),
            ),
            Unresolved::ExternalName(_) => (
                "",
                text,
                "use a Service with a selector, or an EgressNetwork as parent".to_owned(),
            ),
            Unresolved::NoPort { port: None, .. } => (
                ".port",
                "is missing".to_owned(),
                "add a port of the Service".to_owned(),
            ),
            Unresolved::NoPort { .. } => (".port", text, "use a port of the Service".to_owned()),
            Unresolved::Filters(_) => ("", text, "correct it".to_owned()),
        };
        findings.push(Finding::new(
            route,
            format!("{}{part}", backend.field),
            "missing-reference",
            format!("{problem}, so requests to this backend fail"),
            fix,
        ));
    }
}

/// Returns the first port of the reference whose connections are not parsed. The default list
/// applies without an annotation, and has ports that no HTTP server uses.
fn opaque_port(service: &Service, reference: &ParentRef) -> Option<u16> {
    let mut ports = service.ports.iter().map(|port| port.number);
    ports.find(|port| {
        is_port(reference, *port, Some(service))
            && service.protocol(*port, &PortSet::default()) == PortProtocol::Opaque
    })
}
