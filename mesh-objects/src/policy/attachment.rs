//! Which parents accept a route.

use ipnet::IpNet;
use mesh_core::route::filter::RequestKind;

use crate::model::{
    EgressNetwork, Kind, Name, Object, ParentKind, ParentRef, Protocol, Route, RouteId, Server,
    Service,
};

pub use self::refusal::{Mistake, MistakenField, Refusal};

mod refusal;
#[cfg(test)]
mod tests;

/// The properties of a route that decide whether a parent accepts it.
#[derive(Clone, Copy, Debug)]
pub struct RouteParents<'a> {
    pub kind: Kind,
    pub name: &'a Name,
    pub parents: &'a [ParentRef],
}

/// The precedence of kinds of routes with the same parent (GEP-1426): the first kind that a parent
/// has wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteRank {
    Grpc,
    Http,
    Tls,
    Tcp,
}

/// A reference of a route to a parent, which may have precedence over another one.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    pub rank: RouteRank,
    pub kind: Kind,
    pub route: &'a Name,
    pub parent: &'a ParentRef,
}

impl RouteRank {
    /// Returns `None` for a kind that is not a route.
    pub fn new(kind: Kind) -> Option<Self> {
        match kind {
            Kind::GatewayGrpcRoute => Some(Self::Grpc),
            Kind::PolicyHttpRoute | Kind::GatewayHttpRoute => Some(Self::Http),
            Kind::GatewayTlsRoute => Some(Self::Tls),
            Kind::GatewayTcpRoute => Some(Self::Tcp),
            _ => None,
        }
    }
}

impl<M> Route<M> {
    pub fn parents(&self) -> RouteParents<'_> {
        RouteParents {
            kind: self.id.kind,
            name: &self.id.name,
            parents: &self.parents,
        }
    }
}

impl Object {
    /// Returns the parents of a route; `None` for an object of another kind.
    pub fn route_parents(&self) -> Option<RouteParents<'_>> {
        match self {
            Self::PolicyHttpRoute(route) | Self::GatewayHttpRoute(route) => Some(route.parents()),
            Self::GatewayGrpcRoute(route) => Some(route.parents()),
            Self::GatewayTlsRoute(route) | Self::GatewayTcpRoute(route) => Some(route.parents()),
            _ => None,
        }
    }
}

impl<'a> RouteParents<'a> {
    pub fn id(self) -> RouteId {
        RouteId {
            kind: self.kind,
            name: self.name.clone(),
        }
    }

    /// Returns the references of the route.
    pub fn claims(self) -> impl Iterator<Item = Claim<'a>> {
        let rank = RouteRank::new(self.kind);
        let parents = self.parents.iter();
        parents.filter_map(move |parent| {
            Some(Claim {
                rank: rank?,
                kind: self.kind,
                route: self.name,
                parent,
            })
        })
    }

    fn servers(self) -> impl Iterator<Item = &'a ParentRef> {
        let parents = self.parents.iter();
        parents.filter(|parent| parent.kind == ParentKind::Server)
    }

    /// Returns the references that are meant to be to this Server.
    pub fn references_to(self, server: &Server) -> impl Iterator<Item = &'a ParentRef> {
        let is_here = server.name.namespace == self.name.namespace;
        self.servers()
            .filter(move |parent| is_here && parent.name.name == server.name.name)
    }

    /// Returns why a reference cannot be to any Server.
    fn mistake(&self, reference: &ParentRef) -> Option<Mistake> {
        let field = if reference.name.namespace != self.name.namespace {
            MistakenField::Namespace
        } else if reference.port.is_some() {
            MistakenField::Port
        } else if reference.section.is_some() {
            MistakenField::SectionName
        } else {
            return None;
        };
        Some(Mistake {
            server: reference.name.clone(),
            namespace: self.name.namespace.to_string(),
            field,
        })
    }

    /// Returns why none of the references to Servers has an effect: one of them has a mistake.
    pub fn mistake_of_servers(&self) -> Option<Mistake> {
        self.servers().find_map(|parent| self.mistake(parent))
    }

    /// Returns whether the route is usable with Servers and references this one.
    fn names(&self, server: &Server) -> bool {
        let mut servers = self.servers();
        servers.any(|parent| parent.name == server.name) && self.mistake_of_servers().is_none()
    }
}

impl Claim<'_> {
    /// Returns what claims to one parent are ordered by; the first has precedence.
    pub fn precedence(&self) -> (RouteRank, Kind, &Name) {
        (self.rank, self.kind, self.route)
    }

    /// Returns the refusal of a route of the kind `refused` that this claim takes precedence over.
    pub fn refusal(&self, refused: &'static str) -> Refusal {
        Refusal::Conflict {
            kind: self.kind.as_str(),
            route: self.route.clone(),
            refused,
        }
    }
}

/// Returns a GRPCRoute of the Server. HTTPRoutes do not apply beside it.
pub fn grpc_route_of_server<'a>(
    server: &Server,
    candidates: impl IntoIterator<Item = RouteParents<'a>>,
) -> Option<&'a Name> {
    if server.protocol != Protocol::Grpc {
        return None;
    }
    let named = candidates
        .into_iter()
        .filter(|route| route.kind == Kind::GatewayGrpcRoute && route.names(server));
    named.map(|route| route.name).min()
}

/// Returns whether a Server accepts a route: [`attach_to_server`] does for one of its references.
pub fn is_attached_to_server(
    route: RouteParents<'_>,
    server: &Server,
    grpc: Option<&Name>,
) -> bool {
    let mut references = route.servers().filter(|parent| parent.name == server.name);
    references.any(|reference| attach_to_server(route, reference, Some(server), grpc).is_ok())
}

/// Returns whether a Server accepts a route through one of its references. `grpc` is the result of
/// [`grpc_route_of_server`]: a call of gRPC is a request of HTTP/2, so HTTPRoutes apply to it unless
/// there is a GRPCRoute.
///
/// # Errors
///
/// Why the route has no effect on the Server, or the reference is not to it.
pub fn attach_to_server(
    route: RouteParents<'_>,
    reference: &ParentRef,
    server: Option<&Server>,
    grpc: Option<&Name>,
) -> Result<(), Refusal> {
    if let Some(mistake) = route.mistake(reference) {
        return Err(Refusal::Mistake(mistake));
    }
    let Some(server) = server.filter(|server| server.name == reference.name) else {
        return Err(Refusal::NoParent {
            kind: "Server",
            name: reference.name.clone(),
        });
    };
    let conflict = match (RouteRank::new(route.kind), server.protocol) {
        (Some(RouteRank::Grpc), Protocol::Grpc)
        | (Some(RouteRank::Http), Protocol::Detect | Protocol::Http1 | Protocol::Http2) => None,
        (Some(RouteRank::Http), Protocol::Grpc) => grpc,
        _ => {
            return Err(Refusal::Protocol {
                server: server.name.clone(),
                protocol: server.protocol,
                route: route.kind.as_str(),
            });
        }
    };
    if let Some(mistake) = route.mistake_of_servers() {
        return Err(Refusal::OtherMistake(mistake));
    }
    match conflict {
        Some(other) => Err(Refusal::Conflict {
            kind: Kind::GatewayGrpcRoute.as_str(),
            route: other.clone(),
            refused: route.kind.as_str(),
        }),
        None => Ok(()),
    }
}

/// Returns the requests that routes of a Server match; `None` if its connections are not parsed. A
/// Server of gRPC has requests of HTTP if only HTTPRoutes are attached to it. Rate limits apply to
/// requests of HTTP.
pub fn requests_of_server<'a>(
    server: &Server,
    candidates: impl IntoIterator<Item = RouteParents<'a>> + Clone,
) -> Option<RequestKind> {
    match server.protocol {
        Protocol::Detect | Protocol::Http1 | Protocol::Http2 => Some(RequestKind::Http),
        Protocol::Opaque | Protocol::Tls => None,
        Protocol::Grpc => {
            let grpc = grpc_route_of_server(server, candidates.clone());
            let mut routes = candidates.into_iter();
            let is_http =
                grpc.is_none() && routes.any(|route| is_attached_to_server(route, server, None));
            Some(if is_http {
                RequestKind::Http
            } else {
                RequestKind::Grpc
            })
        }
    }
}

/// Returns whether a Service accepts routes with this reference: routes apply to traffic to its
/// cluster IPs. A section is the name of a port.
///
/// # Errors
///
/// Why the Service has no traffic that the reference could be about.
pub fn attach_to_service(reference: &ParentRef, service: Option<&Service>) -> Result<(), Refusal> {
    let name = || reference.name.clone();
    let Some(service) = service else {
        return Err(Refusal::NoParent {
            kind: "Service",
            name: name(),
        });
    };
    if service.external_name {
        return Err(Refusal::ExternalName(name()));
    }
    if !service.has_traffic() {
        return Err(Refusal::Headless(name()));
    }
    if let Some(port) = reference.port
        && !service.has_port(port)
    {
        return Err(Refusal::NoPort {
            service: name(),
            port,
            ports: service.ports.iter().map(|port| port.number).collect(),
        });
    }
    let mut ports = service.ports.iter();
    match &reference.section {
        Some(section) if !ports.any(|port| is_port(reference, port.number, Some(service))) => {
            Err(Refusal::NoPortName {
                service: name(),
                port: reference.port,
                section: section.to_string(),
            })
        }
        _ => Ok(()),
    }
}

/// Returns whether an EgressNetwork accepts routes with this reference. `network` is `None` inside
/// if it never was valid.
///
/// # Errors
///
/// Why the EgressNetwork has no traffic that the reference could be about.
pub fn attach_to_egress_network(
    reference: &ParentRef,
    network: Option<Option<&EgressNetwork>>,
    cluster_networks: &[IpNet],
) -> Result<(), Refusal> {
    let name = || reference.name.clone();
    let Some(network) = network else {
        return Err(Refusal::NoParent {
            kind: "EgressNetwork",
            name: name(),
        });
    };
    let Some(network) = network else {
        return Err(Refusal::InvalidNetwork(name()));
    };
    if network.overlap(cluster_networks).is_some() {
        return Err(Refusal::OverlappingNetwork(name()));
    }
    if reference.section.is_some() {
        return Err(Refusal::SectionOfNetwork(name()));
    }
    match reference.port {
        Some(_) => Ok(()),
        None => Err(Refusal::NoPortOfNetwork(name())),
    }
}

/// Returns whether a reference to a Service or EgressNetwork is about one of its ports. Without
/// port it is about all ports of a Service. An EgressNetwork has no ports, so its routes have to
/// name theirs.
///
/// `service` is `None` for an EgressNetwork, and for a Service that does not exist.
pub fn is_port(reference: &ParentRef, port: u16, service: Option<&Service>) -> bool {
    let is_number = match reference.port {
        Some(number) => number == port,
        None => reference.kind == ParentKind::Service,
    };
    let is_name = || match (&reference.section, service) {
        (None, _) => true,
        (Some(_), None) => false,
        (section, Some(service)) => {
            let mut ports = service.ports.iter();
            ports.any(|entry| entry.number == port && entry.name == *section)
        }
    };
    is_number && is_name()
}

/// Returns the claim that takes precedence over a reference to a Service or EgressNetwork: the same
/// reference of a route of another kind, which applies to the same clients. Routes for all ports do
/// not conflict with routes for one port. Which kind applies to a Server depends on its protocol.
///
/// `clients` are the namespaces whose routes apply to the same clients: routes of the parent's
/// namespace apply to all clients, others only to clients of their own namespace.
pub fn conflict<'a>(
    rank: RouteRank,
    reference: &ParentRef,
    clients: [&str; 2],
    claims: impl IntoIterator<Item = Claim<'a>>,
) -> Option<Claim<'a>> {
    if !reference.kind.has_clients() {
        return None;
    }
    let taken = claims.into_iter().filter(|claim| {
        claim.rank < rank && clients.contains(&&*claim.route.namespace) && claim.parent == reference
    });
    taken.min_by(|one, other| one.precedence().cmp(&other.precedence()))
}
