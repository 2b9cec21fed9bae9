//! Which EgressNetwork has an address.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

use super::age::Age;
use crate::model::EgressNetwork;

/// Returns the network of an address among those that apply to a client. The longest prefix wins,
/// then the oldest object, then the first by name.
pub fn network_of_address<'a>(
    networks: impl Iterator<Item = &'a EgressNetwork>,
    ip: IpAddr,
    cluster_networks: &[IpNet],
) -> Option<&'a EgressNetwork> {
    let containing = networks.filter_map(|network| {
        let length = network.prefix_length(ip, cluster_networks)?;
        Some((length, network))
    });
    containing
        .min_by_key(|(length, network)| {
            (Reverse(*length), Age::new(network.created, &network.name))
        })
        .map(|(_, network)| network)
}
