//! Why a parent does not accept a route, and the words of a route's status for it.

use std::fmt;

use crate::model::{Name, Protocol};
use crate::policy::list;

/// Why a parent does not accept a route. Its text names the object, the field and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A reference that no Server can have.
    Mistake(Mistake),
    /// Another reference to a Server has a mistake, which makes the whole route unusable.
    OtherMistake(Mistake),
    NoParent {
        kind: &'static str,
        name: Name,
    },
    /// Routes of this kind do not apply to the protocol of the Server.
    Protocol {
        server: Name,
        protocol: Protocol,
        route: &'static str,
    },
    ExternalName(Name),
    Headless(Name),
    NoPort {
        service: Name,
        port: u16,
        ports: Vec<u16>,
    },
    NoPortName {
        service: Name,
        port: Option<u16>,
        section: String,
    },
    InvalidNetwork(Name),
    OverlappingNetwork(Name),
    SectionOfNetwork(Name),
    NoPortOfNetwork(Name),
    /// A field of the route that the mesh cannot apply.
    Unsupported(String),
    /// A route of a kind with precedence has the same parent.
    Conflict {
        kind: &'static str,
        route: Name,
        refused: &'static str,
    },
}

/// A field that makes a reference to a Server useless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub server: Name,
    /// The namespace of the route.
    pub namespace: String,
    pub field: MistakenField,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MistakenField {
    Namespace,
    Port,
    SectionName,
}

impl Refusal {
    /// Returns the type of the condition of a route that a refusal makes false.
    pub fn condition(&self) -> &'static str {
        "Accepted"
    }

    /// Returns the reason of the condition, as in Linkerd and the Gateway API.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::OtherMistake(_) | Self::Unsupported(_) => "UnsupportedValue",
            Self::Conflict { .. } => "RouteReasonConflicted",
            _ => "NoMatchingParent",
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            server, namespace, ..
        } = self;
        match self.field {
            MistakenField::Namespace => write!(
                f,
                "Server {server} is in another namespace than the route; expected {namespace}"
            ),
            MistakenField::Port => write!(
                f,
                "the reference to Server {server} has a port; remove it, the Server has one"
            ),
            MistakenField::SectionName => write!(
                f,
                "the reference to Server {server} has a sectionName; remove it, Servers have none"
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mistake(mistake) | Self::OtherMistake(mistake) => mistake.fmt(f),
            Self::NoParent { kind, name } => write!(f, "there is no {kind} {name}"),
            Self::Protocol {
                server,
                protocol,
                route,
            } => write!(
                f,
                "Server {server} has proxyProtocol {protocol}, which {route}s do not apply to"
            ),
            Self::ExternalName(name) => write!(
                f,
                "Service {name} is of type ExternalName; expected one with a cluster IP"
            ),
            Self::Headless(name) => {
                write!(
                    f,
                    "Service {name} is headless; expected one with a cluster IP"
                )
            }
            Self::NoPort {
                service,
                port,
                ports,
            } => write!(
                f,
                "Service {service} has no port {port}; it has {}",
                list(ports)
            ),
            Self::NoPortName {
                service,
                port,
                section,
            } => {
                let port = port.map_or_else(String::new, |port| format!(" {port}"));
                write!(
                    f,
                    "Service {service} has no port{port} with the name {section} of the sectionName"
                )
            }
            Self::InvalidNetwork(name) => write!(f, "EgressNetwork {name} is invalid"),
            Self::OverlappingNetwork(name) => write!(
                f,
                "EgressNetwork {name} is not accepted, because it overlaps the cluster networks"
            ),
            Self::SectionOfNetwork(name) => write!(
                f,
                "the reference to EgressNetwork {name} has a sectionName; remove it, EgressNetworks have none"
            ),
            Self::NoPortOfNetwork(name) => write!(
                f,
                "the reference to EgressNetwork {name} has no port; add that of the traffic"
            ),
            Self::Unsupported(problem) => f.write_str(problem),
            Self::Conflict {
                kind,
                route,
                refused,
            } => write!(
                f,
                "{kind} {route} references the same parent and port, and takes precedence over a {refused}"
            ),
        }
    }
}
