//! Who may pass: the one function that judges a client by a list of authorizations.
//!
//! The proxy calls it for every inbound connection that is not HTTP and for every inbound request.
//! What it cannot decide it denies.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use super::{Authentication, Authorization, Client, ClientTls, Network, Suffix};
use crate::identity::Identity;

/// The first authorization that lets the client through.
pub fn authorize<'a>(
    authorizations: &'a [Authorization],
    client: &Client<'_>,
) -> Option<&'a Authorization> {
    authorizations.iter().find(|authorization| {
        authorization
            .networks
            .iter()
            .any(|network| network.admits(client.ip))
            && authorization.authentication.admits(client.tls)
    })
}

impl Network {
    /// Whether the address is in the network and in none of its exceptions. An IPv4 address inside
    /// an IPv6 one counts as the IPv4 address it carries.
    fn admits(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        canonical(self.net).contains(&ip)
            && !self
                .except
                .iter()
                .any(|except| canonical(*except).contains(&ip))
    }
}

/// A network of IPv4 addresses that is written as one of IPv6 addresses, as the IPv4 network.
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
    fn admits(&self, tls: ClientTls<'_>) -> bool {
        match (self, tls) {
            (Self::Unauthenticated, _) => true,
            (Self::TlsUnauthenticated, ClientTls::Anonymous | ClientTls::Identified(_)) => true,
            (
                Self::TlsAuthenticated {
                    identities,
                    suffixes,
                },
                ClientTls::Identified(id),
            ) => identities.contains(id) || suffixes.iter().any(|suffix| suffix.covers(id)),
            (Self::TlsUnauthenticated | Self::TlsAuthenticated { .. }, _) => false,
        }
    }
}

impl Suffix {
    /// Whether a DNS-like identity ends with a dot and the parts joined by dots. No SPIFFE identity
    /// is covered, not even by an empty suffix.
    pub fn covers(&self, id: &Identity) -> bool {
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
