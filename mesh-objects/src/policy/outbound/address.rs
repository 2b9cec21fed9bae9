//! The object of an address: a Service, an EgressNetwork, or none.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{EgressNetwork, Service};
use crate::policy::egress::network_of_address;
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

/// Returns the owner of an address.
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
/// EgressNetwork, the global namespace's do not apply.
fn egress_network<'a>(
    ip: IpAddr,
    own: impl Iterator<Item = &'a EgressNetwork>,
    global: impl Iterator<Item = &'a EgressNetwork>,
    cluster_networks: &[IpNet],
) -> Option<&'a EgressNetwork> {
    let mut own = own.peekable();
    let has_own = own.peek().is_some();
    let candidates = own.chain(global.filter(|_| !has_own));
    network_of_address(candidates, ip, cluster_networks)
}
