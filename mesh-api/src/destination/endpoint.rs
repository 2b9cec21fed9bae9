//! Endpoints.

use std::collections::HashMap;

use mesh_core::endpoint::{Endpoint, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::labels::Labels;

use super::{http2_params, http2_params_to_proto};
use crate::field::{optional, required};
use crate::proto::destination as wire;
use crate::proto::destination::protocol_hint::{H2, Opaque, OpaqueTransport, Protocol};
use crate::proto::destination::tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity};
use crate::{InvalidField, value};

/// The highest port that proxies accept for opaque transport.
const MAX_OPAQUE_TRANSPORT_PORT: u16 = u16::MAX - 1;

/// Converts a received endpoint.
///
/// # Errors
///
/// A field is invalid.
pub fn endpoint(addr: wire::WeightedAddr) -> Result<Endpoint, InvalidField> {
    let hint = addr.protocol_hint.unwrap_or_default();
    Ok(Endpoint {
        addr: required("addr", addr.addr, value::socket_addr)?,
        weight: addr.weight,
        labels: addr.metric_labels.into_iter().collect(),
        tls: optional("tls_identity", addr.tls_identity, tls_peer)?,
        hint: match hint.protocol {
            Some(Protocol::H2(_)) => ProtocolHint::Http2,
            Some(Protocol::Opaque(_)) => ProtocolHint::Opaque,
            None => ProtocolHint::Unknown,
        },
        opaque_transport_port: optional(
            "protocol_hint.opaque_transport",
            hint.opaque_transport,
            |transport| value::port("inbound_port", transport.inbound_port),
        )?,
        authority_override: addr
            .authority_override
            .map(|authority| authority.authority_override)
            .filter(|authority| !authority.is_empty())
            .map(Into::into),
        http2: optional("http2", addr.http2, http2_params)?,
    })
}

fn owned_pairs(labels: &Labels) -> HashMap<String, String> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    labels.iter().map(owned).collect()
}

/// Converts an endpoint to a message.
pub fn endpoint_to_proto(endpoint: &Endpoint) -> wire::WeightedAddr {
    wire::WeightedAddr {
        addr: Some(endpoint.addr.into()),
        weight: endpoint.weight,
        metric_labels: owned_pairs(&endpoint.labels),
        tls_identity: endpoint.tls.as_ref().map(tls_peer_to_proto),
        protocol_hint: hint_to_proto(endpoint),
        authority_override: endpoint.authority_override.as_ref().map(|authority| {
            wire::AuthorityOverride {
                authority_override: authority.to_string(),
            }
        }),
        http2: endpoint.http2.map(http2_params_to_proto),
        resource_ref: None,
    }
}

/// Without a hint the message is omitted, because its presence means that the peer runs a proxy.
fn hint_to_proto(endpoint: &Endpoint) -> Option<wire::ProtocolHint> {
    let hint = wire::ProtocolHint {
        opaque_transport: endpoint
            .opaque_transport_port
            .filter(|port| (1..=MAX_OPAQUE_TRANSPORT_PORT).contains(port))
            .map(|port| OpaqueTransport {
                inbound_port: port.into(),
            }),
        protocol: match endpoint.hint {
            ProtocolHint::Unknown => None,
            ProtocolHint::Http2 => Some(Protocol::H2(H2 {})),
            ProtocolHint::Opaque => Some(Protocol::Opaque(Opaque {})),
        },
    };
    (hint != wire::ProtocolHint::default()).then_some(hint)
}

fn tls_peer(wire: wire::TlsIdentity) -> Result<TlsPeer, InvalidField> {
    let server_name = wire.server_name.map(|server_name| server_name.name);
    let (id, server_name) = match wire.strategy {
        Some(Strategy::DnsLikeIdentity(dns)) => {
            let server_name = server_name.unwrap_or_else(|| dns.name.clone());
            (dns_name("dns_like_identity.name", &dns.name)?, server_name)
        }
        Some(Strategy::UriLikeIdentity(uri)) => {
            let id = match value::identity("uri_like_identity.uri", &uri.uri)? {
                id @ Identity::Uri(_) => id,
                Identity::Dns(name) => {
                    return Err(InvalidField::not_a(
                        "SPIFFE identity",
                        "uri_like_identity.uri",
                        name,
                    ));
                }
            };
            let server_name = server_name.ok_or_else(|| InvalidField::missing("server_name"))?;
            (id, server_name)
        }
        None => return Err(InvalidField::unknown_kind("strategy")),
    };
    let server_name = dns_name("server_name.name", &server_name)?;
    // Usually equal to the identity, and then stored once: there may be thousands of endpoints.
    let server_name = if server_name == id {
        id.to_shared()
    } else {
        server_name.to_shared()
    };
    Ok(TlsPeer { id, server_name })
}

fn dns_name(field: &str, text: &str) -> Result<Identity, InvalidField> {
    match Identity::parse(text) {
        Ok(id @ Identity::Dns(_)) => Ok(id),
        _ => Err(InvalidField::not_a("DNS name", field, text)),
    }
}

fn tls_peer_to_proto(peer: &TlsPeer) -> wire::TlsIdentity {
    let strategy = match &peer.id {
        Identity::Dns(name) => Strategy::DnsLikeIdentity(DnsLikeIdentity {
            name: name.to_string(),
        }),
        Identity::Uri(uri) => Strategy::UriLikeIdentity(UriLikeIdentity {
            uri: uri.to_string(),
        }),
    };
    wire::TlsIdentity {
        server_name: Some(DnsLikeIdentity {
            name: peer.server_name.to_string(),
        }),
        strategy: Some(strategy),
    }
}
