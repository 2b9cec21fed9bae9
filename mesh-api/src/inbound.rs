//! Messages of the `InboundServerPolicies` service.

use std::sync::Arc;

use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, Network, RateLimit, ServerPolicy, ServerProtocol,
    Suffix,
};
use wire::authn::permit_mesh_tls::Clients;
use wire::authn::{self, Permit};
use wire::http_local_rate_limit::r#override::ClientIdentities;
use wire::http_local_rate_limit::{Limit, Override};
use wire::proxy_protocol::{self, Kind};

use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::inbound as wire;
use crate::{InvalidField, value};

mod route;

/// The label of a Server that tells that its pod is being deleted. The API has no field for it;
/// Linkerd's proxy reads only the labels of the reference (docs/adr/0146).
const TERMINATING: &str = "terminating";

/// Converts a received policy of a port.
///
/// # Errors
///
/// A field is invalid.
pub fn server_policy(server: wire::Server) -> Result<ServerPolicy, InvalidField> {
    Ok(ServerPolicy {
        meta: meta::from_labels("labels", &server.labels)?,
        protocol: required("protocol", server.protocol, protocol)?,
        authorizations: authorizations(server.authorizations)?,
        is_terminating: server
            .labels
            .get(TERMINATING)
            .is_some_and(|value| value == "true"),
    })
}

/// Converts the policy of a port to a message.
pub fn to_proto(policy: &ServerPolicy) -> wire::Server {
    let mut labels = meta::to_labels(&policy.meta);
    if policy.is_terminating {
        labels.insert(TERMINATING.to_owned(), "true".to_owned());
    }
    wire::Server {
        protocol: Some(protocol_to_proto(&policy.protocol)),
        server_ips: Vec::new(),
        authorizations: authorizations_to_proto(&policy.authorizations),
        labels,
    }
}

fn protocol(wire: wire::ProxyProtocol) -> Result<ServerProtocol, InvalidField> {
    let kind = wire
        .kind
        .ok_or_else(|| InvalidField::unknown_kind("kind"))?;
    match kind {
        Kind::Detect(detect) => {
            let read = || {
                Ok(ServerProtocol::Detect {
                    timeout: required("timeout", detect.timeout, value::duration)?,
                    http: HttpServer {
                        routes: each("http_routes", detect.http_routes, route::http::route)?,
                        rate_limit: optional(
                            "http_local_rate_limit",
                            detect.http_local_rate_limit,
                            rate_limit,
                        )?,
                    },
                })
            };
            read().inside("detect")
        }
        Kind::Http1(http) => http_server(http.routes, http.local_rate_limit)
            .map(ServerProtocol::Http1)
            .inside("http1"),
        Kind::Http2(http) => http_server(http.routes, http.local_rate_limit)
            .map(ServerProtocol::Http2)
            .inside("http2"),
        Kind::Grpc(grpc) => each("routes", grpc.routes, route::grpc::route)
            .map(ServerProtocol::Grpc)
            .inside("grpc"),
        Kind::Opaque(_) => Ok(ServerProtocol::Opaque),
        Kind::Tls(_) => Ok(ServerProtocol::Tls),
    }
}

fn protocol_to_proto(protocol: &ServerProtocol) -> wire::ProxyProtocol {
    let http_routes = |http: &HttpServer| {
        http.routes
            .iter()
            .map(route::http::route_to_proto)
            .collect()
    };
    let rate_limit = |http: &HttpServer| http.rate_limit.as_ref().map(rate_limit_to_proto);
    let kind = match protocol {
        ServerProtocol::Detect { timeout, http } => Kind::Detect(proxy_protocol::Detect {
            timeout: Some(value::duration_to_proto(*timeout)),
            http_routes: http_routes(http),
            http_local_rate_limit: rate_limit(http),
        }),
        ServerProtocol::Http1(http) => Kind::Http1(proxy_protocol::Http1 {
            routes: http_routes(http),
            local_rate_limit: rate_limit(http),
        }),
        ServerProtocol::Http2(http) => Kind::Http2(proxy_protocol::Http2 {
            routes: http_routes(http),
            local_rate_limit: rate_limit(http),
        }),
        ServerProtocol::Grpc(routes) => Kind::Grpc(proxy_protocol::Grpc {
            routes: routes.iter().map(route::grpc::route_to_proto).collect(),
        }),
        ServerProtocol::Opaque => Kind::Opaque(proxy_protocol::Opaque {}),
        ServerProtocol::Tls => Kind::Tls(proxy_protocol::Tls {}),
    };
    wire::ProxyProtocol { kind: Some(kind) }
}

fn http_server(
    routes: Vec<wire::HttpRoute>,
    limit: Option<wire::HttpLocalRateLimit>,
) -> Result<HttpServer, InvalidField> {
    Ok(HttpServer {
        routes: each("routes", routes, route::http::route)?,
        rate_limit: optional("local_rate_limit", limit, rate_limit)?,
    })
}

fn authorizations(wire: Vec<wire::Authz>) -> Result<Arc<[Authorization]>, InvalidField> {
    each("authorizations", wire, authorization).map(Into::into)
}

fn authorizations_to_proto(authorizations: &[Authorization]) -> Vec<wire::Authz> {
    authorizations.iter().map(authorization_to_proto).collect()
}

fn authorization(wire: wire::Authz) -> Result<Authorization, InvalidField> {
    Ok(Authorization {
        meta: match wire.metadata {
            Some(metadata) => meta(metadata).inside("metadata")?,
            None => meta::from_labels("labels", &wire.labels)?,
        },
        networks: each("networks", wire.networks, network)?,
        authentication: required("authentication", wire.authentication, authentication)?,
    })
}

fn authorization_to_proto(authorization: &Authorization) -> wire::Authz {
    wire::Authz {
        networks: authorization
            .networks
            .iter()
            .map(|network| wire::Network {
                net: Some(network.net.into()),
                except: network.except.iter().copied().map(Into::into).collect(),
            })
            .collect(),
        authentication: Some(authentication_to_proto(&authorization.authentication)),
        labels: meta::to_labels(&authorization.meta),
        metadata: Some(meta::to_proto(&authorization.meta)),
    }
}

fn network(wire: wire::Network) -> Result<Network, InvalidField> {
    Ok(Network {
        net: required("net", wire.net, value::network)?,
        except: each("except", wire.except, value::network)?,
    })
}

fn authentication(wire: wire::Authn) -> Result<Authentication, InvalidField> {
    match wire.permit {
        Some(Permit::Unauthenticated(_)) => Ok(Authentication::Unauthenticated),
        Some(Permit::MeshTls(tls)) => match tls.clients {
            Some(Clients::Unauthenticated(_)) => Ok(Authentication::TlsUnauthenticated),
            Some(Clients::Identities(clients)) => Ok(Authentication::TlsAuthenticated {
                identities: each("meshTLS.identities.identities", clients.identities, |id| {
                    value::identity("name", &id.name)
                })?,
                suffixes: clients
                    .suffixes
                    .into_iter()
                    .map(|suffix| Suffix(suffix.parts.into_iter().map(Into::into).collect()))
                    .collect(),
            }),
            None => Err(InvalidField::unknown_kind("meshTLS.clients")),
        },
        None => Err(InvalidField::unknown_kind("permit")),
    }
}

fn authentication_to_proto(authentication: &Authentication) -> wire::Authn {
    let mesh_tls = |clients| {
        Permit::MeshTls(authn::PermitMeshTls {
            clients: Some(clients),
        })
    };
    let permit = match authentication {
        Authentication::Unauthenticated => Permit::Unauthenticated(authn::PermitUnauthenticated {}),
        Authentication::TlsUnauthenticated => {
            mesh_tls(Clients::Unauthenticated(authn::PermitUnauthenticated {}))
        }
        Authentication::TlsAuthenticated {
            identities,
            suffixes,
        } => mesh_tls(Clients::Identities(
            authn::permit_mesh_tls::PermitClientIdentities {
                identities: identities.iter().map(identity_to_proto).collect(),
                suffixes: suffixes
                    .iter()
                    .map(|suffix| wire::IdentitySuffix {
                        parts: suffix.0.iter().map(ToString::to_string).collect(),
                    })
                    .collect(),
            },
        )),
    };
    wire::Authn {
        permit: Some(permit),
    }
}

fn identity_to_proto(identity: &mesh_core::identity::Identity) -> wire::Identity {
    wire::Identity {
        name: identity.to_string(),
    }
}

fn rate_limit(wire: wire::HttpLocalRateLimit) -> Result<RateLimit, InvalidField> {
    Ok(RateLimit {
        meta: required("metadata", wire.metadata, meta)?,
        total: optional("total", wire.total, limit)?,
        identity: optional("identity", wire.identity, limit)?,
        overrides: each("overrides", wire.overrides, |entry| {
            let clients = entry.clients.unwrap_or_default().identities;
            let clients = each("clients.identities", clients, |id| {
                value::identity("name", &id.name)
            })?;
            Ok((clients, required("limit", entry.limit, limit)?))
        })?,
    })
}

fn rate_limit_to_proto(rate_limit: &RateLimit) -> wire::HttpLocalRateLimit {
    wire::HttpLocalRateLimit {
        metadata: Some(meta::to_proto(&rate_limit.meta)),
        total: rate_limit.total.map(limit_to_proto),
        identity: rate_limit.identity.map(limit_to_proto),
        overrides: rate_limit
            .overrides
            .iter()
            .map(|(clients, limit)| Override {
                limit: Some(limit_to_proto(*limit)),
                clients: Some(ClientIdentities {
                    identities: clients.iter().map(identity_to_proto).collect(),
                }),
            })
            .collect(),
    }
}

fn limit(wire: Limit) -> Result<u32, InvalidField> {
    match wire.requests_per_second {
        0 => Err(InvalidField::not_a(
            "rate above zero",
            "requests_per_second",
            0,
        )),
        rate => Ok(rate),
    }
}

/// Proxies reject a rate of zero; the lowest rate is used instead.
fn limit_to_proto(limit: u32) -> Limit {
    Limit {
        requests_per_second: limit.max(1),
    }
}

#[cfg(test)]
mod tests;
