//! The object of an address: a Service, an EgressNetwork, or none.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{EgressNetwork, Service};
use crate::policy::age::Age;
use crate::policy::settings::PolicySettings;
use crate::store::Store;

/// What an address belongs to, for the clients of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) enum AddressOwner<'a> {
    /// It is a cluster IP.
    Service(&'a Service),
    EgressNetwork(&'a EgressNetwork),
    /// It is outside the cluster, and traffic to it is forwarded.
    Outside,
    /// It is in the cluster: the address of a pod, which profiles describe, or of nothing.
    Inside,
}

/// Returns the owner of an address. If several Services have it, the first by name is the owner.
pub(super) fn owner<'a>(
    store: &'a Store,
    settings: &PolicySettings,
    ip: IpAddr,
    client_namespace: &Arc<str>,
) -> AddressOwner<'a> {
    if let Some(service) = store.services_at(ip).next() {
        return AddressOwner::Service(service);
    }
    let networks = |namespace| store.egress_networks_in(namespace);
    let own = networks(client_namespace);
    let global = networks(&settings.global_egress_namespace);
    let cluster_networks = &settings.cluster_networks;
    match egress_network(ip, own, global, cluster_networks) {
        Some(network) => AddressOwner::EgressNetwork(network),
        None if cluster_networks.iter().any(|net| net.contains(&ip)) => AddressOwner::Inside,
        None => AddressOwner::Outside,
    }
}

/// Returns the EgressNetwork of an address outside the Services. If the client's namespace has any
/// EgressNetwork, the global namespace's do not apply. The longest prefix wins, then the
/// oldest object, then the first by name.
fn egress_network<'a>(
    ip: IpAddr,
    own: impl Iterator<Item = &'a EgressNetwork>,
    global: impl Iterator<Item = &'a EgressNetwork>,
    cluster_networks: &[IpNet],
) -> Option<&'a EgressNetwork> {
    let mut own = own.peekable();
    let has_own = own.peek().is_some();
    let candidates = own.chain(global.filter(|_| !has_own));
    let containing = candidates.filter_map(|network| {
        let length = network.prefix_length(ip, cluster_networks)?;
        Some((length, network))
    });
    containing
        .min_by_key(|(length, network)| {
            (Reverse(*length), Age::new(network.created, &network.name))
        })
        .map(|(_, network)| network)
}
