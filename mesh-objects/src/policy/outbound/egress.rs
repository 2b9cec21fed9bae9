//! The EgressNetwork of an address outside the Services.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::EgressNetwork;
use crate::policy::age::Age;
use crate::policy::settings::PolicySettings;
use crate::store::Store;

/// Returns the EgressNetwork of an address for the clients of a namespace. If that namespace has
/// any, the EgressNetworks of the global namespace do not apply. The longest prefix wins, then the
/// oldest object, then the first by name.
pub(super) fn find<'a>(
    store: &'a Store,
    settings: &PolicySettings,
    ip: IpAddr,
    client_namespace: &Arc<str>,
) -> Option<&'a EgressNetwork> {
    let own = store.egress_networks_in(client_namespace).next().is_some();
    let namespace = if own {
        client_namespace
    } else {
        &settings.global_egress_namespace
    };
    store
        .egress_networks_in(namespace)
        .filter_map(|network| {
            let length = network.prefix_length(ip, &settings.cluster_networks)?;
            Some((length, network))
        })
        .min_by_key(|(length, network)| {
            (Reverse(*length), Age::new(network.created, &network.name))
        })
        .map(|(_, network)| network)
}
