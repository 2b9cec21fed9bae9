//! Authorization of a client by a list of authorizations.
//!
//! The proxy calls it for every inbound connection that is not HTTP and for every inbound request.
//! Undecidable cases are denied.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use super::{Authentication, Authorization, Client, ClientTls, Network, Suffix};
use crate::identity::Identity;

/// Returns the first authorization that applies to the client, `None` if it is not authorized.
pub fn authorize<'a>(
    authorizations: &'a [Authorization],
    client: &Client<'_>,
) -> Option<&'a Authorization> {
    authorizations.iter().find(|authorization| {
        authorization
            .networks
            .iter()
            .any(|network| network.matches(client.ip))
            && authorization.authentication.matches(client.tls)
    })
}

impl Network {
    /// Whether the address is in the network and in none of its exceptions. A v4-mapped IPv6
    /// address counts as its IPv4 address.
    fn matches(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        canonical(self.net).contains(&ip)
            && !self
                .except
                .iter()
                .any(|except| canonical(*except).contains(&ip))
    }
}

/// Converts a network of v4-mapped IPv6 addresses to the IPv4 network.
fn canonical(net: IpNet) -> IpNet {
    const MAPPED_PREFIX: u8 = 96;
    let IpNet::V6(v6) = net else {
        return net;
    };
    let v4: Option<Ipv4Addr> = v6.addr().to_ipv4_mapped();
    match (v4, v6.prefix_len().checked_sub(MAPPED_PREFIX)) {
        (Some(addr), Some(prefix)) => Ipv4Net::new(addr, prefix).map_or(net, IpNet::V4),
        _ => net,
    }
}

impl Authentication {
    fn matches(&self, tls: ClientTls<'_>) -> bool {
        match (self, tls) {
            (Self::Unauthenticated, _) => true,
            (Self::TlsUnauthenticated, ClientTls::Anonymous | ClientTls::Identified(_)) => true,
            (
                Self::TlsAuthenticated {
                    identities,
                    suffixes,
                },
                ClientTls::Identified(id),
            ) => identities.contains(id) || suffixes.iter().any(|suffix| suffix.matches(id)),
            (Self::TlsUnauthenticated | Self::TlsAuthenticated { .. }, _) => false,
        }
    }
}

impl Suffix {
    /// Whether a DNS identity ends with a dot and the labels. SPIFFE identities match no suffix,
    /// not even the empty one.
    pub fn matches(&self, id: &Identity) -> bool {
        let Identity::Dns(name) = id else {
            return false;
        };
        let mut rest: &str = name;
        for part in self.0.iter().rev() {
            let Some(head) = strip_suffix_ignore_case(rest, part) else {
                return false;
            };
            let Some(head) = head.strip_suffix('.') else {
                return false;
            };
            rest = head;
        }
        true
    }
}

fn strip_suffix_ignore_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    let (head, tail) = text.split_at_checked(text.len().checked_sub(suffix.len())?)?;
    tail.eq_ignore_ascii_case(suffix).then_some(head)
}

#[cfg(test)]
mod tests;
