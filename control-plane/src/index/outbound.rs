//! The outbound policy of a destination, for the clients of a namespace.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, GrpcRoutes, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, Routes, Target, TcpRoute, TcpVerdict,
};
use mesh_core::resilience::Timeouts;
use mesh_core::route::http::HttpMatch;
use mesh_core::route::{Route, Rule};

use super::inbound::DETECT_TIMEOUT;
use super::settings::PolicySettings;
use super::store::Store;
use crate::model::{self, Name, PortProtocol, Service};
use backend::BackendBuilder;

mod backend;
mod routes;

/// A destination and the namespace of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OutboundKey {
    Service {
        service: Name,
        port: u16,
        client_namespace: Arc<str>,
        /// The Service was looked up by address, so its spec must define the port.
        by_address: bool,
    },
    /// An address outside the cluster.
    External(SocketAddr),
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
pub(super) fn resolve(
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
                by_address: false,
            })
        }
        Target::Addr(addr) => {
            let ip = addr.ip().to_canonical();
            if let Some(service) = store.services_at(ip).next() {
                return Ok(OutboundKey::Service {
                    service: service.name.clone(),
                    port: addr.port(),
                    client_namespace: client_namespace.clone(),
                    by_address: true,
                });
            }
            let in_cluster = settings
                .cluster_networks
                .iter()
                .any(|net| net.contains(&ip));
            if in_cluster {
                return Err(OutboundError::NoSuchService);
            }
            Ok(OutboundKey::External(*addr))
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

pub(super) fn policy(
    store: &Store,
    settings: &PolicySettings,
    key: &OutboundKey,
) -> OutboundPolicy {
    match key {
        OutboundKey::External(addr) => external(*addr),
        OutboundKey::Service {
            service,
            port,
            client_namespace,
            by_address,
        } => {
            let found = store.service(service);
            let undefined =
                found.is_some_and(|found| !found.ports.iter().any(|entry| entry.number == *port));
            if *by_address && undefined {
                return undefined_port(service, *port);
            }
            let parent = RouteParent {
                store,
                settings,
                name: service,
                port: *port,
                service: found,
                client_namespace,
            };
            OutboundPolicy {
                parent: service_meta(service, *port),
                protocol: parent.protocol(),
            }
        }
    }
}

/// Forwards traffic that leaves the cluster to its original destination.
fn external(addr: SocketAddr) -> OutboundPolicy {
    let meta = Meta::new_default("egress-fallback");
    let backend = || {
        Distribution::FirstAvailable(vec![Arc::new(RouteBackend {
            backend: Backend {
                meta: meta.clone(),
                target: BackendTarget::Forward(Box::new(Endpoint {
                    weight: 1,
                    ..Endpoint::plain(addr)
                })),
            },
            filters: Vec::new(),
            verdict: TcpVerdict::Forward,
        })])
    };
    let http = || HttpRoutes {
        routes: vec![Route {
            meta: meta.clone(),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: vec![HttpMatch::default()],
                action: OutboundRule {
                    filters: Vec::new(),
                    backends: backend(),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            }],
        }],
        failure_accrual: None,
    };
    OutboundPolicy {
        parent: meta.clone(),
        protocol: OutboundProtocol::Detect {
            timeout: DETECT_TIMEOUT,
            opaque: Some(TcpRoute {
                meta: meta.clone(),
                backends: backend(),
                verdict: TcpVerdict::Forward,
            }),
            http1: http(),
            http2: http(),
        },
    }
}

/// Denies a port that the Service does not define.
fn undefined_port(service: &Name, port: u16) -> OutboundPolicy {
    OutboundPolicy {
        parent: service_meta(service, port),
        protocol: OutboundProtocol::Opaque(Some(TcpRoute {
            meta: Meta::new_default("undefined-port"),
            backends: Distribution::Empty,
            verdict: TcpVerdict::Forbidden,
        })),
    }
}

pub(super) fn service_meta(service: &Name, port: u16) -> Meta {
    let Name { namespace, name } = service.clone();
    Meta::Resource(Resource {
        port: Some(port),
        ..Resource::new("core", "Service", namespace, name)
    })
}

/// A port of a Service, the parent of routes.
#[derive(Clone, Copy)]
struct RouteParent<'a> {
    store: &'a Store,
    settings: &'a PolicySettings,
    name: &'a Name,
    port: u16,
    /// `None` if the Service does not exist. A target by name is balanced anyway.
    service: Option<&'a Service>,
    client_namespace: &'a Arc<str>,
}

impl RouteParent<'_> {
    fn protocol(&self) -> OutboundProtocol {
        let defaults = &self.settings.default_opaque_ports;
        let protocol = match self.service {
            Some(service) => service.protocol(self.port, defaults),
            None if defaults.contains(self.port) => PortProtocol::Opaque,
            None => PortProtocol::Unspecified,
        };
        let grpc = routes::grpc(self);
        match protocol {
            PortProtocol::Http1 => OutboundProtocol::Http1(self.http_routes()),
            PortProtocol::Http2 if grpc.is_empty() => OutboundProtocol::Http2(self.http_routes()),
            PortProtocol::Http2 => OutboundProtocol::Grpc(self.grpc_routes(&grpc)),
            PortProtocol::Opaque => OutboundProtocol::Opaque(Some(self.opaque_route())),
            PortProtocol::Unspecified if !grpc.is_empty() => {
                OutboundProtocol::Grpc(self.grpc_routes(&grpc))
            }
            PortProtocol::Unspecified => {
                let http = self.http_routes();
                OutboundProtocol::Detect {
                    timeout: DETECT_TIMEOUT,
                    opaque: Some(self.opaque_route()),
                    http1: http.clone(),
                    http2: http,
                }
            }
        }
    }

    fn http_routes(&self) -> HttpRoutes {
        let attached = routes::http(self);
        let mut routes: Vec<_> = attached
            .iter()
            .map(|route| routes::convert_http(self, route))
            .collect();
        if routes.is_empty() {
            routes.push(routes::default_http(self));
        }
        self.routes(routes)
    }

    fn grpc_routes(&self, attached: &[&model::GrpcRoute]) -> GrpcRoutes {
        let routes = attached
            .iter()
            .map(|route| routes::convert_grpc(self, route));
        self.routes(routes.collect())
    }

    fn routes<M, T>(&self, routes: Vec<Route<M, OutboundRule<T>>>) -> Routes<M, T> {
        Routes {
            routes,
            failure_accrual: self
                .service
                .and_then(|service| service.traffic.failure_accrual),
        }
    }

    /// Connections are balanced without penalties, which depend on responses.
    fn opaque_route(&self) -> TcpRoute {
        TcpRoute {
            meta: Meta::new_default("opaq"),
            backends: Distribution::FirstAvailable(vec![
                BackendBuilder::for_connections(self).parent_backend(),
            ]),
            verdict: TcpVerdict::Forward,
        }
    }
}
