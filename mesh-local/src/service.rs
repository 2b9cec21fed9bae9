//! Services: their addresses, endpoints, nftables rules and DNS records. These modules have no I/O.
//! The node computes objects for the controllers, an nftables table and DNS records from the
//! manifests and the state of its pods, and applies the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use crate::digest;
use crate::manifest::ObjectKey;
use crate::network::Network;

pub mod dns;
pub mod endpoints;
pub mod nft;

/// Allocates the addresses of Services, which keep them as long as they exist.
#[derive(Clone, Debug, Default)]
pub struct AddressAllocator {
    assigned: BTreeMap<ObjectKey, Vec<IpAddr>>,
}

/// The request of a Service's `clusterIP`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClusterIpRequest {
    Headless,
    /// A CNAME without cluster IP.
    ExternalName,
    Addresses(Vec<IpAddr>),
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("spec.clusterIP: {0} is outside the node's Service range; remove it")]
    Outside(IpAddr),
    #[error("spec.clusterIP: {0} is used by Service {1}; remove it")]
    Taken(IpAddr, ObjectKey),
    #[error(
        "spec.clusterIP: {0:?} is not a valid address; remove it, or use None for a headless Service"
    )]
    Invalid(String),
    #[error("all addresses of {0} are used; set a larger range with --service-cidr")]
    Full(String),
}

impl AddressAllocator {
    /// Returns the addresses of a Service: its current ones, the requested ones, or free ones. They
    /// are empty for headless Services. The search for free addresses starts at a hash of the name,
    /// so that a Service usually has the same addresses after the next `up`.
    pub fn allocate(
        &mut self,
        network: &Network,
        key: &ObjectKey,
        service: &Service,
    ) -> Result<Vec<IpAddr>, AddressError> {
        if let ClusterIpRequest::Headless | ClusterIpRequest::ExternalName =
            cluster_ip_request(service)?
        {
            self.assigned.remove(key);
            return Ok(Vec::new());
        }
        let families = families(network, service);
        if let Some(assigned) = self.assigned.get(key)
            && assigned
                .iter()
                .map(IpAddr::is_ipv6)
                .eq(families.iter().copied())
            && matches!(cluster_ip_request(service)?, ClusterIpRequest::Any)
        {
            return Ok(assigned.clone());
        }
        self.assigned.remove(key);
        let addresses = match cluster_ip_request(service)? {
            ClusterIpRequest::Addresses(addresses) => self.check_requested(network, addresses)?,
            _ => families
                .into_iter()
                .map(|v6| self.find_free(network, key, v6))
                .collect::<Result<_, _>>()?,
        };
        self.assigned.insert(key.clone(), addresses.clone());
        Ok(addresses)
    }

    /// Releases the addresses of Services that no longer exist.
    pub fn retain(&mut self, services: &BTreeSet<&ObjectKey>) {
        self.assigned.retain(|key, _| services.contains(key));
    }

    fn check_requested(
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

    fn find_free(
        &self,
        network: &Network,
        key: &ObjectKey,
        v6: bool,
    ) -> Result<IpAddr, AddressError> {
        // The network, node and broadcast addresses are excluded. Only a part of the IPv6 range is
        // used.
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

    fn owner(&self, address: &IpAddr) -> Option<&ObjectKey> {
        let mut assigned = self.assigned.iter();
        assigned.find_map(|(key, all)| all.contains(address).then_some(key))
    }
}

/// Sets the fields that the API server sets: addresses, families, type and protocols.
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
    matches!(cluster_ip_request(service), Ok(ClusterIpRequest::Headless))
}

/// Returns the IP families of a Service in order of preference, with true for IPv6. The default is
/// IPv4, as in Kubernetes.
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

fn cluster_ip_request(service: &Service) -> Result<ClusterIpRequest, AddressError> {
    let Some(spec) = &service.spec else {
        return Ok(ClusterIpRequest::Any);
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return Ok(ClusterIpRequest::ExternalName);
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
        [] => Ok(ClusterIpRequest::Any),
        ["None", ..] => Ok(ClusterIpRequest::Headless),
        texts => texts
            .iter()
            .map(|text| {
                let invalid =
                    |_: std::net::AddrParseError| AddressError::Invalid((*text).to_owned());
                text.parse().map_err(invalid)
            })
            .collect::<Result<_, _>>()
            .map(ClusterIpRequest::Addresses),
    }
}

#[cfg(test)]
pub(crate) mod tests;
