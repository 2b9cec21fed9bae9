//! EgressNetworks.

use ipnet::IpNet;
use mesh_core::policy::inbound::Network;
use mesh_core::ports::PortSet;
use std::net::IpAddr;

use super::{Name, TrafficSettings};

/// Addresses outside the cluster, and the policy of traffic to them.
#[derive(Clone, Debug, PartialEq)]
pub struct EgressNetwork {
    pub name: Name,
    /// Seconds since 1970; `None` for objects that are not from an API server.
    pub created: Option<i64>,
    pub policy: TrafficPolicy,
    /// `None` for all addresses outside the cluster networks.
    pub networks: Option<Vec<Network>>,
    /// The opaque ports of its annotation; `None` without annotation.
    pub opaque_ports: Option<PortSet>,
    pub traffic: TrafficSettings,
}

/// The treatment of traffic that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    Allow,
    Deny,
}

impl EgressNetwork {
    /// Returns the length of the longest prefix that contains the address; `None` if it is not in
    /// the network. By default the network has all addresses outside the cluster networks.
    pub fn prefix_length(&self, ip: IpAddr, cluster_networks: &[IpNet]) -> Option<u8> {
        let Some(networks) = &self.networks else {
            let in_cluster = cluster_networks.iter().any(|net| net.contains(&ip));
            return (!in_cluster).then_some(0);
        };
        networks
            .iter()
            .filter(|network| {
                network.net.contains(&ip) && !network.except.iter().any(|net| net.contains(&ip))
            })
            .map(|network| network.net.prefix_len())
            .max()
    }

    /// Returns a network that intersects a cluster network without excepting it, and that cluster
    /// network. Such an EgressNetwork is not accepted, so no route attaches to it.
    pub fn overlap(&self, cluster_networks: &[IpNet]) -> Option<(IpNet, IpNet)> {
        self.networks.iter().flatten().find_map(|network| {
            let overlapping = cluster_networks.iter().find(|cluster| {
                // If two blocks intersect, one contains the other.
                let Some(common) = smaller(network.net, **cluster) else {
                    return false;
                };
                !network.except.iter().any(|net| net.contains(&common))
            });
            overlapping.map(|cluster| (network.net, *cluster))
        })
    }
}

/// Returns the block that is contained in the other; `None` if they do not intersect.
fn smaller(one: IpNet, other: IpNet) -> Option<IpNet> {
    if one.contains(&other) {
        Some(other)
    } else {
        other.contains(&one).then_some(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(networks: Option<&[(&str, &[&str])]>) -> EgressNetwork {
        let network = |(net, except): &(&str, &[&str])| Network {
            net: net.parse().unwrap(),
            except: except.iter().map(|net| net.parse().unwrap()).collect(),
        };
        EgressNetwork {
            name: Name::new("shop", "outside"),
            created: None,
            policy: TrafficPolicy::Allow,
            networks: networks.map(|networks| networks.iter().map(network).collect()),
            opaque_ports: None,
            traffic: TrafficSettings::default(),
        }
    }

    fn cluster() -> [IpNet; 2] {
        ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap())
    }

    #[test]
    fn longest_prefix_without_exception_counts() {
        let outside = network(Some(&[
            ("203.0.113.0/24", &["203.0.113.8/29"]),
            ("203.0.0.0/16", &[]),
            ("2001:db8::/32", &[]),
        ]));
        let length = |ip: &str| outside.prefix_length(ip.parse().unwrap(), &cluster());
        assert_eq!(length("203.0.113.1"), Some(24));
        assert_eq!(length("203.0.113.9"), Some(16));
        assert_eq!(length("198.51.100.1"), None);
        assert_eq!(length("2001:db8::1"), Some(32));
        // Explicit networks may be in the cluster.
        let inside = network(Some(&[("10.9.0.0/16", &[])]));
        let ip = "10.9.0.1".parse().unwrap();
        assert_eq!(inside.prefix_length(ip, &cluster()), Some(16));
    }

    #[test]
    fn default_networks_are_all_outside_the_cluster() {
        let outside = network(None);
        let length = |ip: &str| outside.prefix_length(ip.parse().unwrap(), &cluster());
        assert_eq!(length("203.0.113.1"), Some(0));
        assert_eq!(length("2001:db8::1"), Some(0));
        assert_eq!(length("10.1.0.1"), None);
        assert_eq!(length("fd00::1"), None);
        assert_eq!(outside.overlap(&cluster()), None);
    }

    #[test]
    fn overlap_is_intersection_that_is_not_excepted() {
        let overlap = |net: &str, except: &[&str]| {
            let found = network(Some(&[(net, except)])).overlap(&cluster());
            found.map(|(_, cluster)| cluster.to_string())
        };
        assert_eq!(overlap("203.0.113.0/24", &[]), None);
        assert_eq!(overlap("10.9.0.0/16", &[]).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(overlap("10.9.0.0/16", &["10.9.0.0/16"]), None);
        assert_eq!(overlap("0.0.0.0/0", &["10.0.0.0/8"]), None);
        assert!(overlap("0.0.0.0/0", &["10.0.0.0/9"]).is_some());
        assert_eq!(overlap("::/0", &[]).as_deref(), Some("fd00::/8"));
    }
}
