//! Services: their addresses, their endpoints, and how the machine is told of both.
//!
//! Everything here is pure. The node computes the whole picture from manifests and the state of its
//! pods, compares it with the last one, and applies what changed: objects for the controllers, one
//! nftables table for addresses, one DNS configuration for names.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::api::core::v1::Service;

use crate::{digest, manifest::Key, network::Network};

pub mod dns;
pub mod endpoints;
pub mod nft;

/// The addresses that Services have, kept for as long as they exist.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    given: BTreeMap<Key, Vec<IpAddr>>,
}

/// What a Service's `clusterIP` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Headless,
    /// A name elsewhere; nothing is balanced.
    ExternalName,
    These(Vec<IpAddr>),
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("spec.clusterIP: {0} is outside the node's Service addresses; leave it out")]
    Outside(IpAddr),
    #[error("spec.clusterIP: {0} is taken by Service {1}; leave it out")]
    Taken(IpAddr, Key),
    #[error(
        "spec.clusterIP: {0:?} is no address; leave it out, or write None for a headless Service"
    )]
    Unreadable(String),
    #[error("every address of {0} is taken; choose a larger block with --service-cidr")]
    Full(String),
}

impl Addresses {
    /// The addresses of a Service: those it has, those it asks for, or free ones. None for a
    /// headless Service.
    ///
    /// Free addresses are looked for from a place that follows from the name, so that a Service
    /// usually has the same ones after the next `up`.
    pub fn of(
        &mut self,
        network: &Network,
        key: &Key,
        service: &Service,
    ) -> Result<Vec<IpAddr>, AddressError> {
        if let Asked::Headless | Asked::ExternalName = asked(service)? {
            self.given.remove(key);
            return Ok(Vec::new());
        }
        let families = families(network, service);
        if let Some(given) = self.given.get(key)
            && given
                .iter()
                .map(IpAddr::is_ipv6)
                .eq(families.iter().copied())
            && matches!(asked(service)?, Asked::Any)
        {
            return Ok(given.clone());
        }
        self.given.remove(key);
        let addresses = match asked(service)? {
            Asked::These(addresses) => self.claim(network, addresses)?,
            _ => families
                .into_iter()
                .map(|v6| self.free(network, key, v6))
                .collect::<Result<_, _>>()?,
        };
        self.given.insert(key.clone(), addresses.clone());
        Ok(addresses)
    }

    /// Forgets the Services that are no more.
    pub fn retain(&mut self, services: &BTreeSet<&Key>) {
        self.given.retain(|key, _| services.contains(key));
    }

    fn claim(
        &self,
        network: &Network,
        addresses: Vec<IpAddr>,
    ) -> Result<Vec<IpAddr>, AddressError> {
        for address in &addresses {
            let inside = match address {
                IpAddr::V4(v4) => network.services_v4.contains(v4),
                IpAddr::V6(v6) => network.services_v6.is_some_and(|net| net.contains(v6)),
            };
            if !inside || network.node_ips().contains(address) {
                return Err(AddressError::Outside(*address));
            }
            if let Some(owner) = self.owner(address) {
                return Err(AddressError::Taken(*address, owner.clone()));
            }
        }
        Ok(addresses)
    }

    fn free(&self, network: &Network, key: &Key, v6: bool) -> Result<IpAddr, AddressError> {
        // Neither the network's own address, nor the node's, nor the broadcast address. Of the vast
        // IPv6 block a part is enough.
        let size = |bits: u32| 1u32 << bits.min(16);
        let (size, block) = match (v6, network.services_v6) {
            (true, Some(net)) => (size(u32::from(128 - net.prefix_len())), net.to_string()),
            _ => {
                let net = network.services_v4;
                (size(u32::from(32 - net.prefix_len())), net.to_string())
            }
        };
        let usable = size - 3;
        let hash = digest::of_text(&key.to_string());
        let start = u32::from_str_radix(&hash[..8], 16).unwrap_or_default() % usable;
        let at = |offset: u32| match (v6, network.services_v6) {
            (true, Some(net)) => IpAddr::V6((net.network().to_bits() + u128::from(offset)).into()),
            _ => IpAddr::V4((network.services_v4.network().to_bits() + offset).into()),
        };
        (0..usable)
            .map(|step| at(2 + (start + step) % usable))
            .find(|address| self.owner(address).is_none())
            .ok_or(AddressError::Full(block))
    }

    fn owner(&self, address: &IpAddr) -> Option<&Key> {
        let mut given = self.given.iter();
        given.find_map(|(key, all)| all.contains(address).then_some(key))
    }
}

/// Fills in what the API server would: addresses, families, target ports and protocols.
pub fn fill_in(service: &mut Service, addresses: &[IpAddr]) {
    let headless = is_headless(service);
    let Some(spec) = &mut service.spec else {
        return;
    };
    for port in spec.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    if spec.type_.as_deref() == Some("ExternalName") {
        return;
    }
    spec.type_.get_or_insert_with(|| "ClusterIP".to_owned());
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    if headless {
        spec.cluster_ip = Some("None".into());
        spec.cluster_ips = Some(vec!["None".into()]);
    } else if let Some(first) = texts.first() {
        spec.cluster_ip = Some(first.clone());
        let family = |address: &IpAddr| if address.is_ipv6() { "IPv6" } else { "IPv4" };
        let families = addresses.iter().map(|address| family(address).to_owned());
        spec.ip_families = Some(families.collect());
        spec.cluster_ips = Some(texts);
    }
}

pub fn is_headless(service: &Service) -> bool {
    matches!(asked(service), Ok(Asked::Headless))
}

/// The IP families of a Service, IPv6 as true, the first one first. As in Kubernetes, a Service
/// that does not say has one: IPv4.
pub fn families(network: &Network, service: &Service) -> Vec<bool> {
    let spec = service.spec.as_ref();
    let dual = spec
        .and_then(|spec| spec.ip_family_policy.as_deref())
        .is_some_and(|policy| policy == "PreferDualStack" || policy == "RequireDualStack");
    let named = spec.and_then(|spec| spec.ip_families.as_ref());
    let mut families: Vec<bool> = named
        .into_iter()
        .flatten()
        .map(|family| family == "IPv6")
        .collect();
    if families.is_empty() {
        families.push(false);
    }
    if dual && families.len() == 1 {
        families.push(!families[0]);
    }
    if network.services_v6.is_none() {
        families.retain(|v6| !v6);
    }
    families
}

fn asked(service: &Service) -> Result<Asked, AddressError> {
    let Some(spec) = &service.spec else {
        return Ok(Asked::Any);
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return Ok(Asked::ExternalName);
    }
    let several = spec.cluster_ips.iter().flatten();
    let mut texts: Vec<&str> = spec
        .cluster_ip
        .iter()
        .chain(several)
        .map(String::as_str)
        .collect();
    texts.retain(|text| !text.is_empty());
    texts.dedup();
    match texts.as_slice() {
        [] => Ok(Asked::Any),
        ["None", ..] => Ok(Asked::Headless),
        texts => texts
            .iter()
            .map(|text| {
                let unreadable =
                    |_: std::net::AddrParseError| AddressError::Unreadable((*text).to_owned());
                text.parse().map_err(unreadable)
            })
            .collect::<Result<_, _>>()
            .map(Asked::These),
    }
}

#[cfg(test)]
pub(crate) mod tests;
