//! Which backends of routes exist. Requests to one that does not exist fail.

use std::fmt;
use std::sync::Arc;

use super::list;
use crate::model::{BackendKind, Name, ParentKind, ParentRef, ReportedBackend, Service};

/// Why requests to a backend fail. Its text is the message of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unresolved {
    Kind {
        kind: Arc<str>,
        name: Name,
    },
    /// An EgressNetwork only forwards traffic to where it goes, so it is a backend of its own
    /// routes only.
    NotParent(Name),
    Missing {
        kind: &'static str,
        name: Name,
    },
    ExternalName(Name),
    NoPort {
        service: Name,
        port: Option<u16>,
        ports: Vec<u16>,
    },
    /// Its filters cannot be applied.
    Filters(Arc<str>),
}

impl Unresolved {
    /// Returns the reason of the condition, as in Linkerd and the Gateway API.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Kind { .. } | Self::NotParent(_) => "InvalidKind",
            Self::Filters(_) => "UnsupportedValue",
            Self::Missing { .. } | Self::ExternalName(_) | Self::NoPort { .. } => "BackendNotFound",
        }
    }
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind { kind, name } => {
                write!(f, "{kind} {name} cannot be a backend; expected a Service")
            }
            Self::NotParent(name) => write!(
                f,
                "EgressNetwork {name} can only be a backend where it is the parent"
            ),
            Self::Missing { kind, name } => write!(f, "there is no {kind} {name}"),
            Self::ExternalName(name) => write!(
                f,
                "Service {name} is of type ExternalName, which has no endpoints"
            ),
            Self::NoPort {
                service,
                port: Some(port),
                ports,
            } => write!(
                f,
                "Service {service} has no port {port}; it has {}",
                list(ports)
            ),
            Self::NoPort { service, ports, .. } => {
                write!(f, "has no port; Service {service} has {}", list(ports))
            }
            Self::Filters(problem) => f.write_str(problem),
        }
    }
}

/// Returns whether requests to a backend of a route with this parent have endpoints to go to. A
/// backend without namespace is in the namespace of the parent.
///
/// # Errors
///
/// Why requests to it fail.
pub fn resolve<'a>(
    backend: &ReportedBackend,
    parent: &ParentRef,
    service: impl Fn(&Name) -> Option<&'a Service>,
    has_network: impl Fn(&Name) -> bool,
) -> Result<(), Unresolved> {
    let reference = &backend.reference;
    let namespace = reference.namespace.as_ref();
    let name = Name {
        namespace: namespace.unwrap_or(&parent.name.namespace).clone(),
        name: reference.name.clone(),
    };
    match reference.kind {
        BackendKind::Service => {}
        BackendKind::EgressNetwork => {
            let is_parent = parent.kind == ParentKind::EgressNetwork && parent.name == name;
            let kind = "EgressNetwork";
            return if !has_network(&name) {
                Err(Unresolved::Missing { kind, name })
            } else if is_parent {
                Ok(())
            } else {
                Err(Unresolved::NotParent(name))
            };
        }
        BackendKind::Other => {
            let kind = backend.kind.clone();
            return Err(Unresolved::Kind { kind, name });
        }
    }
    let Some(service) = service(&name) else {
        let kind = "Service";
        return Err(Unresolved::Missing { kind, name });
    };
    if service.external_name {
        return Err(Unresolved::ExternalName(name));
    }
    let port = reference.port;
    if !port.is_some_and(|port| service.has_port(port)) {
        return Err(Unresolved::NoPort {
            service: name,
            port,
            ports: service.ports.iter().map(|port| port.number).collect(),
        });
    }
    match &backend.problem {
        Some(problem) => Err(Unresolved::Filters(problem.clone())),
        None => Ok(()),
    }
}
