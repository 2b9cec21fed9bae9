//! The outbound policy of a destination, for the clients of a namespace.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::outbound::{OutboundPolicy, Target};

use self::address::AddressOwner;
use self::parent::{ParentObject, RouteParent};
pub use self::routes::time_limits;
use super::settings::PolicySettings;
use crate::model::Name;
use crate::store::Store;

mod address;
mod attached;
mod backend;
mod default_route;
mod parent;
mod protocol;
mod routes;
mod special;

/// A destination and the namespace of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutboundKey {
    Service {
        service: Name,
        port: u16,
        client_namespace: Arc<str>,
        /// The address that was looked up, if any. The Service must have it, and its spec must
        /// define the port.
        address: Option<IpAddr>,
    },
    /// An address that no Service has. Its EgressNetwork is looked up again when one changes.
    External {
        addr: SocketAddr,
        client_namespace: Arc<str>,
    },
}

/// Why a destination has no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    #[error("No such service")]
    NoSuchService,
    #[error("{0:?} is not an authority: expected a host name and an optional port")]
    InvalidAuthority(Arc<str>),
}

/// The port of an authority without port.
const DEFAULT_PORT: u16 = 80;

/// Resolves a target. The result does not change during a stream.
pub fn resolve(
    store: &Store,
    settings: &PolicySettings,
    target: &Target,
    client_namespace: &Arc<str>,
) -> Result<OutboundKey, OutboundError> {
    match target {
        Target::Authority(authority) => {
            let (service, port) = parse_authority(authority, &settings.cluster_domain)?;
            Ok(OutboundKey::Service {
                service,
                port,
                client_namespace: client_namespace.clone(),
                address: None,
            })
        }
        Target::Addr(addr) => {
            let ip = addr.ip().to_canonical();
            let owner = address::owner(store, settings, ip, client_namespace);
            Ok(match owner {
                AddressOwner::Service(service) => OutboundKey::Service {
                    service: service.name.clone(),
                    port: addr.port(),
                    client_namespace: client_namespace.clone(),
                    address: Some(ip),
                },
                _ => OutboundKey::External {
                    addr: *addr,
                    client_namespace: client_namespace.clone(),
                },
            })
        }
    }
}

/// Parses `<name>.<namespace>.svc`, with or without cluster domain, trailing dot and port.
fn parse_authority(authority: &Arc<str>, domain: &str) -> Result<(Name, u16), OutboundError> {
    let invalid = || OutboundError::InvalidAuthority(authority.clone());
    let parsed: http::uri::Authority = authority.parse().map_err(|_error| invalid())?;
    let port = match parsed.port() {
        Some(port) => Some(port.as_u16())
            .filter(|port| *port > 0)
            .ok_or_else(invalid)?,
        None if authority.ends_with(':') => return Err(invalid()),
        None => DEFAULT_PORT,
    };
    let host = parsed.host().trim_end_matches('.');
    if host.is_empty() {
        return Err(invalid());
    }
    let host = host.strip_suffix(domain.trim_matches('.')).unwrap_or(host);
    let mut labels = host.trim_end_matches('.').split('.');
    match (labels.next(), labels.next(), labels.next(), labels.next()) {
        (Some(name), Some(namespace), Some("svc"), None) if !name.is_empty() => {
            Ok((Name::new(namespace, name), port))
        }
        _ => Err(OutboundError::NoSuchService),
    }
}

/// Returns the policy. `None` for an address in the cluster that belongs to no Service and to no
/// EgressNetwork, and for one that does not belong to the object of the key any more: the client
/// has to look it up again.
pub fn policy(
    store: &Store,
    settings: &PolicySettings,
    key: &OutboundKey,
) -> Option<OutboundPolicy> {
    let (object, port, client_namespace) = match key {
        OutboundKey::External {
            addr,
            client_namespace,
        } => {
            let ip = addr.ip().to_canonical();
            let network = match address::owner(store, settings, ip, client_namespace) {
                AddressOwner::EgressNetwork(network) => network,
                AddressOwner::Outside => return Some(special::fallback(*addr)),
                AddressOwner::Service(_) | AddressOwner::Inside => return None,
            };
            let object = ParentObject::EgressNetwork {
                network,
                addr: *addr,
            };
            (object, addr.port(), client_namespace)
        }
        OutboundKey::Service {
            service: name,
            port,
            client_namespace,
            address,
        } => {
            if let Some(ip) = address
                && !store.services_at(*ip).any(|service| service.name == *name)
            {
                return None;
            }
            let service = store.service(name);
            let undefined = service.is_some_and(|service| !service.has_port(*port));
            if address.is_some() && undefined {
                return Some(special::undefined_port(name, *port));
            }
            (
                ParentObject::Service { name, service },
                *port,
                client_namespace,
            )
        }
    };
    let parent = RouteParent {
        store,
        settings,
        object,
        port,
        client_namespace,
    };
    Some(OutboundPolicy {
        parent: parent.meta(),
        protocol: parent.protocol(),
    })
}

/// Returns the namespaces whose objects determine the policy, other than as backends. Routes are in
/// the namespace of their parent or of the client.
pub fn namespaces<'a>(settings: &'a PolicySettings, key: &'a OutboundKey) -> [&'a Arc<str>; 2] {
    match key {
        OutboundKey::Service {
            service,
            client_namespace,
            ..
        } => [&service.namespace, client_namespace],
        OutboundKey::External {
            client_namespace, ..
        } => [&settings.global_egress_namespace, client_namespace],
    }
}

pub fn service_meta(service: &Name, port: u16) -> Meta {
    port_meta("core", "Service", service, port)
}

fn egress_network_meta(network: &Name, port: u16) -> Meta {
    port_meta("policy.linkerd.io", "EgressNetwork", network, port)
}

fn port_meta(group: &str, kind: &str, object: &Name, port: u16) -> Meta {
    let Name { namespace, name } = object.clone();
    Meta::Resource(Resource {
        port: Some(port),
        ..Resource::new(group, kind, namespace, name)
    })
}
