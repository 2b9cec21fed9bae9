//! The decisions about systemd units. They are those about pods, but for what follows from the
//! network namespace that units share with their host and with each other: an own address is the
//! host's, and only ports that a unit uses are its own.

use super::{ConnectAttempt, LookupVerdict, Outbound, redirect};
use crate::address::{Address, Family};
use crate::counter::Counter;
use crate::layout::{FLAG_INBOUND_FAIL_OPEN, PodConfig, Role};
use crate::verdict::{SocketLookup, is_local, skipped};

/// The use of a port of the host that belongs to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    /// The proxy's listener of outbound connections.
    Outbound,
    /// A port that outbound connections are redirected to.
    Redirect,
    /// The proxy's listener of inbound connections, or a port where the unit listens.
    Inbound,
}

/// Returns the verdict about a connect(2) call of a unit or its proxy. `is_other_unit`: another
/// unit listens on the destination, which is then reached through the proxies although the address
/// is the host's.
#[inline(always)]
pub fn outbound(
    pod: &PodConfig,
    attempt: &ConnectAttempt,
    is_own: impl Fn(&Address) -> bool,
    is_skipped: impl Fn(u16) -> bool,
    is_other_unit: impl FnOnce() -> bool,
) -> Outbound {
    redirect(pod, attempt, is_own, is_skipped, is_other_unit)
}

/// Returns the verdict about a connection that arrives on a port of a unit. Connections of the host
/// are not steered to the unit's proxy, except those that are in flight: on a port of the proxy
/// they are the unit's own, on a port of the unit they are another proxy's.
#[inline(always)]
pub fn inbound(
    pod: &PodConfig,
    lookup: &SocketLookup,
    port_use: PortUse,
    is_in_flight: impl FnOnce() -> bool,
    is_own: impl Fn(&Address) -> bool,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
) -> LookupVerdict {
    let from_host = is_local(lookup, is_own);
    let role = match port_use {
        PortUse::Inbound => Role::Inbound,
        // The kernel refuses these, since the listener is on loopback.
        PortUse::Outbound | PortUse::Redirect if !from_host => {
            return LookupVerdict::Pass(Counter::InboundSkippedPort);
        }
        // On loopback the kernel's own lookup finds the listener.
        PortUse::Outbound if !lookup.local.is_loopback() => {
            return LookupVerdict::Proxy(Role::Outbound);
        }
        PortUse::Outbound | PortUse::Redirect => Role::Outbound,
    };
    if from_host {
        return if is_in_flight() {
            LookupVerdict::Proxy(role)
        } else {
            LookupVerdict::Pass(Counter::InboundLocal)
        };
    }
    match skipped(pod, lookup, is_skipped_port, is_skipped_source) {
        Some(counter) => LookupVerdict::Pass(counter),
        None => LookupVerdict::Proxy(Role::Inbound),
    }
}

/// Whether a connection that a socket of the unit itself has accepted should have gone to the
/// proxy.
#[inline(always)]
pub fn bypasses_proxy(
    pod: &PodConfig,
    lookup: &SocketLookup,
    is_own: impl Fn(&Address) -> bool,
    is_skipped_port: impl Fn(u16) -> bool,
    is_skipped_source: impl Fn(&Address) -> bool,
) -> bool {
    let verdict = inbound(
        pod,
        lookup,
        PortUse::Inbound,
        || false,
        is_own,
        is_skipped_port,
        is_skipped_source,
    );
    pod.flags & FLAG_INBOUND_FAIL_OPEN == 0 && matches!(verdict, LookupVerdict::Proxy(_))
}

/// Returns the result for the address that the kernel would select a listening socket by: the
/// address itself, or the unspecified one of a socket that is bound to none.
#[inline(always)]
pub fn listener<T>(local: &Address, listens: impl Fn(&Address) -> Option<T>) -> Option<T> {
    const ANY_V4: Address = Address::from_v4(0);
    if let Some(found) = listens(local) {
        return Some(found);
    }
    if matches!(local.family(), Family::V4)
        && let Some(found) = listens(&ANY_V4)
    {
        return Some(found);
    }
    listens(&Address::UNSPECIFIED)
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::layout::{FLAG_INBOUND, FLAG_PASS_IPV6};

    fn address(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().unwrap())
    }

    fn unit() -> PodConfig {
        PodConfig {
            v4: address("10.1.0.5"),
            v6: address("fd00::5"),
            proxy_uid: 2102,
            flags: FLAG_INBOUND,
            inbound_port: 61_001,
            outbound_port: 61_000,
        }
    }

    fn own(address_: &Address) -> bool {
        ["10.1.0.5", "fd00::5", "172.17.0.1"]
            .iter()
            .any(|own| address(own).same(address_))
    }

    fn lookup(remote: &str, local: &str, local_port: u16) -> SocketLookup {
        SocketLookup {
            remote: address(remote),
            local: address(local),
            local_port,
        }
    }

    fn arrives(
        unit: &PodConfig,
        lookup: &SocketLookup,
        port_use: PortUse,
        is_in_flight: bool,
    ) -> LookupVerdict {
        inbound(
            unit,
            lookup,
            port_use,
            || is_in_flight,
            own,
            |port| port == 9000,
            |source| source.same(&address("10.8.0.1")),
        )
    }

    #[test]
    fn connections_of_the_host_pass_unless_they_are_in_flight() {
        const LOCAL: LookupVerdict = LookupVerdict::Pass(Counter::InboundLocal);
        const OUTBOUND: LookupVerdict = LookupVerdict::Proxy(Role::Outbound);
        const INBOUND: LookupVerdict = LookupVerdict::Proxy(Role::Inbound);
        let own_to_own = ("10.1.0.5", "10.1.0.5");
        let second_to_own = ("172.17.0.1", "10.1.0.5");
        let loopback = ("127.0.0.1", "127.0.0.1");
        let table = [
            (own_to_own, PortUse::Inbound, false, LOCAL),
            (own_to_own, PortUse::Inbound, true, INBOUND),
            (second_to_own, PortUse::Inbound, false, LOCAL),
            (loopback, PortUse::Inbound, false, LOCAL),
            (own_to_own, PortUse::Redirect, true, OUTBOUND),
            (second_to_own, PortUse::Redirect, true, OUTBOUND),
            // Another program of the host listens there.
            (own_to_own, PortUse::Redirect, false, LOCAL),
            (own_to_own, PortUse::Outbound, false, OUTBOUND),
            (loopback, PortUse::Outbound, false, LOCAL),
        ];
        for ((remote, local), port_use, is_in_flight, expected) in table {
            let lookup = lookup(remote, local, 80);
            let found = arrives(&unit(), &lookup, port_use, is_in_flight);
            assert_eq!(found, expected, "{remote} {local} {port_use:?}");
        }
    }

    #[test]
    fn connections_from_outside_reach_the_inbound_listener_only() {
        let pass = LookupVerdict::Pass;
        let table = [
            (
                "10.9.9.9",
                80,
                PortUse::Inbound,
                LookupVerdict::Proxy(Role::Inbound),
            ),
            (
                "10.9.9.9",
                9000,
                PortUse::Inbound,
                pass(Counter::InboundSkippedPort),
            ),
            (
                "10.8.0.1",
                80,
                PortUse::Inbound,
                pass(Counter::InboundSkippedSubnet),
            ),
            (
                "10.9.9.9",
                61_000,
                PortUse::Outbound,
                pass(Counter::InboundSkippedPort),
            ),
            (
                "10.9.9.9",
                61_010,
                PortUse::Redirect,
                pass(Counter::InboundSkippedPort),
            ),
        ];
        for (remote, port, port_use, expected) in table {
            let lookup = lookup(remote, "10.1.0.5", port);
            // Whatever another host sends is not in flight, and a forged entry changes nothing.
            let found = arrives(&unit(), &lookup, port_use, true);
            assert_eq!(found, expected, "{remote} {port} {port_use:?}");
        }
        let ipv4_only = PodConfig {
            flags: FLAG_INBOUND | FLAG_PASS_IPV6,
            ..unit()
        };
        let lookup = lookup("fd00::9", "fd00::5", 80);
        let found = arrives(&ipv4_only, &lookup, PortUse::Inbound, false);
        assert_eq!(found, pass(Counter::InboundSkippedSubnet));
    }

    #[test]
    fn connection_around_the_proxy_is_detected() {
        let bypasses = |unit: &PodConfig, remote: &str, port: u16| {
            bypasses_proxy(
                unit,
                &lookup(remote, "10.1.0.5", port),
                own,
                |port| port == 9000,
                |source| source.same(&address("10.8.0.1")),
            )
        };
        assert!(bypasses(&unit(), "10.9.9.9", 80));
        for (remote, port) in [
            ("10.1.0.5", 80),
            ("127.0.0.1", 80),
            ("10.9.9.9", 9000),
            ("10.8.0.1", 80),
        ] {
            assert!(!bypasses(&unit(), remote, port), "{remote} {port}");
        }
        let open = PodConfig {
            flags: FLAG_INBOUND | FLAG_INBOUND_FAIL_OPEN,
            ..unit()
        };
        assert!(!bypasses(&open, "10.9.9.9", 80));
    }

    #[test]
    fn port_of_another_unit_on_an_own_address_is_redirected() {
        let connect = |destination: &str, is_other_unit: bool| {
            let attempt = ConnectAttempt {
                destination: address(destination),
                port: 80,
                source: Address::UNSPECIFIED,
                on_loopback: false,
                by_proxy: false,
            };
            outbound(&unit(), &attempt, own, |_| false, || is_other_unit)
        };
        let local = Outbound::Direct(Counter::OutboundLocal);
        for own in ["10.1.0.5", "172.17.0.1"] {
            assert_eq!(connect(own, false), local);
            assert_eq!(connect(own, true), Outbound::Redirect(unit().v4));
        }
        assert_eq!(connect("127.0.0.1", true), local);
        assert_eq!(connect("10.9.9.9", false), Outbound::Redirect(unit().v4));
    }

    #[test]
    fn most_specific_address_selects_the_listener() {
        let find = |local: &str, bound: &[&str]| {
            listener(&address(local), |candidate| {
                let position = bound.iter().position(|text| address(text).same(candidate));
                position.map(|position| bound[position].to_owned())
            })
        };
        let found = |text: &str| Some(text.to_owned());
        let all = ["::", "0.0.0.0", "10.1.0.5"];
        assert_eq!(find("10.1.0.5", &all), found("10.1.0.5"));
        assert_eq!(find("10.1.0.6", &all), found("0.0.0.0"));
        assert_eq!(find("10.1.0.6", &["::"]), found("::"));
        assert_eq!(find("fd00::5", &["0.0.0.0", "::"]), found("::"));
        assert_eq!(find("fd00::5", &["0.0.0.0"]), None);
    }
}
