//! Computes the map entries of a pod before any is written.

use std::net::IpAddr;

use aya::maps::lpm_trie::Key;
use ipnet::IpNet;
use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::layout::{
    AddressKey, FLAG_INBOUND, FLAG_INBOUND_FAIL_OPEN, FLAG_PASS_IPV6, INBOUND, OUTBOUND, PodConfig,
    PortSkipKey, SubnetSkipKey,
};
use mesh_ebpf_common::prefix::port_prefixes;

use super::error::Error;
use crate::redirect::{PodRedirect, PortSet, RedirectSpec, Tier, UnitRedirect};

pub(super) struct Plan {
    pub(super) config: PodConfig,
    pub(super) addresses: Vec<AddressKey>,
    pub(super) port_skips: Vec<Key<PortSkipKey>>,
    pub(super) subnet_skips: Vec<Key<SubnetSkipKey>>,
}

impl Plan {
    /// `proxy_uid` is the id outside of the pod's user namespace.
    pub(super) fn new(pod: &PodRedirect, proxy_uid: u32) -> Result<Plan, Error> {
        if let Some(address) = pod.addresses.iter().find(|address| address.is_loopback()) {
            return Err(Error::LoopbackAddress(*address));
        }
        let steers = if steers_inbound(pod.tier)? {
            FLAG_INBOUND
        } else {
            0
        };
        let config = PodConfig {
            v4: redirect_target(pod, IpAddr::is_ipv4, Address::LOOPBACK_V4),
            v6: redirect_target(pod, is_routable_v6, Address::LOOPBACK_V6),
            ..config(&pod.spec, steers, proxy_uid)
        };
        if config.v4.is_unspecified() && config.v6.is_unspecified() {
            return Err(Error::NoAddress);
        }
        let addresses = pod.addresses.iter().map(|address| AddressKey {
            cookie: pod.cookie,
            address: Address::from(*address),
        });
        Ok(Plan {
            config,
            addresses: addresses.collect(),
            ..skips(pod.cookie, &pod.spec)
        })
    }

    /// Returns the entries of a systemd unit on a host with these addresses, the preferred one of
    /// each family first. They are the host's and not among the entries. Before the host has an
    /// address the target is loopback: otherwise connections would leave the unit directly at the
    /// moment when it gets one.
    pub(super) fn of_unit(unit: &UnitRedirect, addresses: &[IpAddr]) -> Plan {
        let first = |is_usable: fn(&IpAddr) -> bool, loopback: Address| {
            let found = addresses.iter().find(|address| is_usable(address));
            match found {
                Some(address) => Address::from(*address),
                None if addresses.is_empty() => loopback,
                None => Address::UNSPECIFIED,
            }
        };
        Plan {
            config: PodConfig {
                v4: first(IpAddr::is_ipv4, Address::LOOPBACK_V4),
                v6: first(is_routable_v6, Address::LOOPBACK_V6),
                ..config(&unit.spec, FLAG_INBOUND, unit.spec.proxy_uid)
            },
            ..skips(unit.cookie, &unit.spec)
        }
    }
}

/// Returns the settings without the addresses.
fn config(spec: &RedirectSpec, steers: u32, proxy_uid: u32) -> PodConfig {
    let mut flags = steers;
    if spec.inbound_fail_open {
        flags |= FLAG_INBOUND_FAIL_OPEN;
    }
    if !spec.ipv6 {
        flags |= FLAG_PASS_IPV6;
    }
    PodConfig {
        proxy_uid,
        flags,
        inbound_port: spec.inbound_port,
        outbound_port: spec.outbound_port,
        ..PodConfig::default()
    }
}

/// Returns a plan with the skipped ports and subnets only.
fn skips(cookie: u64, spec: &RedirectSpec) -> Plan {
    let outbound = port_keys(cookie, OUTBOUND, &spec.skip_outbound);
    let inbound = port_keys(cookie, INBOUND, &spec.skip_inbound);
    let subnets = spec.skip_subnets.iter();
    Plan {
        config: PodConfig::default(),
        addresses: Vec::new(),
        port_skips: outbound.chain(inbound).collect(),
        subnet_skips: subnets.map(|subnet| subnet_key(cookie, subnet)).collect(),
    }
}

/// Returns whether the tier redirects inbound connections with sk_lookup.
fn steers_inbound(tier: Tier) -> Result<bool, Error> {
    match tier {
        Tier::Full => Ok(true),
        Tier::Split => Ok(false),
        Tier::Nft | Tier::Iptables => Err(Error::WrongTier(tier)),
    }
}

/// Returns where connections of one family are redirected to: the pod's first address of it, or
/// unspecified if it has none. Without steering (split tier) only connections to loopback reach the
/// listener on loopback.
fn redirect_target(
    pod: &PodRedirect,
    is_usable: impl Fn(&IpAddr) -> bool,
    loopback: Address,
) -> Address {
    match pod.addresses.iter().find(|address| is_usable(address)) {
        None => Address::UNSPECIFIED,
        Some(_) if pod.tier == Tier::Split => loopback,
        Some(address) => Address::from(*address),
    }
}

/// Excludes link-local addresses: a connection to one needs its interface's scope id.
fn is_routable_v6(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    }
}

fn port_keys(
    cookie: u64,
    direction: u8,
    ports: &PortSet,
) -> impl Iterator<Item = Key<PortSkipKey>> {
    ports
        .ranges()
        .iter()
        .flat_map(|range| port_prefixes(*range.start(), *range.end()))
        .map(move |prefix| {
            Key::new(
                PortSkipKey::PORT_OFFSET_BITS + u32::from(prefix.length),
                PortSkipKey::new(cookie, direction, prefix.port),
            )
        })
}

fn subnet_key(cookie: u64, subnet: &IpNet) -> Key<SubnetSkipKey> {
    /// Bits of the prefix of an IPv4-mapped address.
    const MAPPED_BITS: u32 = 96;
    let bits = match subnet {
        IpNet::V4(v4) => MAPPED_BITS + u32::from(v4.prefix_len()),
        IpNet::V6(v6) => u32::from(v6.prefix_len()),
    };
    let address = Address::from(subnet.network());
    Key::new(
        SubnetSkipKey::ADDRESS_OFFSET_BITS + bits,
        SubnetSkipKey::new(cookie, &address),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redirect::{PodRef, RedirectSpec};

    fn pod(tier: Tier, addresses: &[&str]) -> PodRedirect {
        PodRedirect {
            pod: PodRef {
                namespace: "shop".into(),
                name: "web".into(),
                uid: "1".into(),
            },
            sandbox_id: "sandbox".into(),
            netns: "/run/netns/web".into(),
            cookie: 42,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            spec: RedirectSpec {
                proxy_uid: 2102,
                proxy_gid: None,
                inbound_port: 4143,
                outbound_port: 4140,
                admin_port: 4191,
                control_port: 4190,
                skip_inbound: "4190-4191".parse().unwrap(),
                skip_outbound: "8000-8010".parse().unwrap(),
                skip_subnets: vec!["10.8.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()],
                ipv6: true,
                inbound_fail_open: false,
            },
            tier,
        }
    }

    fn ip(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn redirect_target_depends_on_tier_and_family() {
        let table: [(Tier, &[&str], &str, &str); 5] = [
            (Tier::Full, &["10.1.0.5"], "10.1.0.5", "::"),
            (
                Tier::Full,
                &["10.1.0.5", "10.2.0.5", "fd00::5"],
                "10.1.0.5",
                "fd00::5",
            ),
            (Tier::Full, &["10.1.0.5", "fe80::5"], "10.1.0.5", "::"),
            (Tier::Split, &["10.1.0.5"], "127.0.0.1", "::"),
            (Tier::Split, &["10.1.0.5", "fd00::5"], "127.0.0.1", "::1"),
        ];
        for (tier, addresses, v4, v6) in table {
            let plan = Plan::new(&pod(tier, addresses), 2102).unwrap();
            assert_eq!(plan.config.v4, ip(v4), "{tier:?} {addresses:?}");
            assert_eq!(plan.config.v6, ip(v6), "{tier:?} {addresses:?}");
            assert_eq!(plan.addresses.len(), addresses.len());
            assert_eq!(plan.config.flags & FLAG_INBOUND != 0, tier == Tier::Full);
        }
    }

    #[test]
    fn unit_is_redirected_to_address_of_its_host_or_loopback_before_there_is_one() {
        let unit = UnitRedirect {
            unit: "nginx.service".into(),
            cookie: 1 << 63 | 1,
            cgroups: vec!["system.slice/nginx.service".into()],
            proxy_cgroup: "mesh.slice/mesh-proxy@nginx.service".into(),
            spec: pod(Tier::Full, &[]).spec,
            redirect_ports: 61_004..=61_063,
        };
        let table: [(&[&str], &str, &str); 4] = [
            (&["10.1.0.5", "10.2.0.5", "fd00::5"], "10.1.0.5", "fd00::5"),
            (&["10.1.0.5", "fe80::5"], "10.1.0.5", "::"),
            (&["fd00::5"], "::", "fd00::5"),
            (&[], "127.0.0.1", "::1"),
        ];
        for (addresses, v4, v6) in table {
            let addresses: Vec<IpAddr> =
                addresses.iter().map(|text| text.parse().unwrap()).collect();
            let plan = Plan::of_unit(&unit, &addresses);
            assert_eq!(plan.config.v4, ip(v4), "{addresses:?}");
            assert_eq!(plan.config.v6, ip(v6), "{addresses:?}");
            assert_eq!(plan.config.flags, FLAG_INBOUND);
            assert_eq!((plan.addresses.len(), plan.port_skips.len()), (0, 4));
        }
    }

    #[test]
    fn ipv6_passes_if_the_pod_does_not_redirect_it() {
        let mut pod = pod(Tier::Full, &["10.1.0.5", "fd00::5"]);
        let passes = |pod: &PodRedirect| {
            let plan = Plan::new(pod, 2102).unwrap();
            plan.config.flags & FLAG_PASS_IPV6 != 0
        };
        assert!(!passes(&pod));
        pod.spec.ipv6 = false;
        assert!(passes(&pod));
        // Nothing of a pod that has only IPv6 is redirected.
        pod.addresses.remove(0);
        assert!(passes(&pod));
    }

    #[test]
    fn pods_without_usable_addresses_or_ebpf_tier_are_rejected() {
        let error = |pod: &PodRedirect| Plan::new(pod, 2102).err().map(|error| error.to_string());
        assert!(error(&pod(Tier::Nft, &["10.1.0.5"])).is_some());
        assert!(error(&pod(Tier::Full, &[])).is_some());
        assert!(error(&pod(Tier::Full, &["fe80::5"])).is_some());
        assert!(error(&pod(Tier::Full, &["10.1.0.5", "127.0.0.1"])).is_some());
    }

    #[test]
    fn skipped_ports_and_subnets_become_prefixes() {
        let plan = Plan::new(&pod(Tier::Full, &["10.1.0.5"]), 2102).unwrap();
        let ports: Vec<_> = plan
            .port_skips
            .iter()
            .map(|key| {
                let data = key.data();
                let bits = key.prefix_len() - PortSkipKey::PORT_OFFSET_BITS;
                (data.direction, u16::from_be_bytes(data.port), bits)
            })
            .collect();
        let expected = [
            (OUTBOUND, 8000, 13),
            (OUTBOUND, 8008, 15),
            (OUTBOUND, 8010, 16),
            (INBOUND, 4190, 15),
        ];
        assert_eq!(ports, expected);
        let subnets: Vec<_> = plan
            .subnet_skips
            .iter()
            .map(|key| {
                let address = Address::from_octets(key.data().address);
                (
                    address,
                    key.prefix_len() - SubnetSkipKey::ADDRESS_OFFSET_BITS,
                )
            })
            .collect();
        assert_eq!(subnets, [(ip("10.8.0.0"), 112), (ip("fd00::"), 8)]);
    }
}
