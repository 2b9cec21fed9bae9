//! Tables of all verdicts.

use core::net::IpAddr;

use super::*;
use crate::layout::FLAG_INBOUND;

fn address(text: &str) -> Address {
    Address::from(text.parse::<IpAddr>().unwrap())
}

fn pod() -> PodConfig {
    PodConfig {
        v4: address("10.1.0.5"),
        v6: address("fd00::5"),
        proxy_uid: 2102,
        flags: FLAG_INBOUND,
        inbound_port: 4143,
        outbound_port: 4140,
    }
}

/// The addresses of the test pod in addition to its primary ones.
fn own(address_: &Address) -> bool {
    ["10.1.0.5", "fd00::5", "192.168.7.1"]
        .iter()
        .any(|own| address(own).same(address_))
}

fn connect_to(destination: &str, port: u16) -> ConnectAttempt {
    ConnectAttempt {
        destination: address(destination),
        port,
        source: Address::UNSPECIFIED,
        on_loopback: false,
        by_proxy: false,
    }
}

fn connect_by_proxy(destination: &str, port: u16) -> ConnectAttempt {
    ConnectAttempt {
        by_proxy: true,
        ..connect_to(destination, port)
    }
}

fn redirected(to: &str) -> Outbound {
    Outbound::Redirect(address(to))
}

fn check_outbound(attempt: ConnectAttempt, expected: Outbound) {
    let found = outbound(&pod(), &attempt, own, |port| port == 4567);
    assert_eq!(found, expected, "{attempt:?}");
}

#[test]
fn connections_are_redirected_to_own_address_of_their_family() {
    for (destination, expected, expected_on_loopback) in [
        ("10.9.9.9", "10.1.0.5", "127.0.0.1"),
        ("240.0.0.1", "10.1.0.5", "127.0.0.1"),
        ("169.254.169.254", "10.1.0.5", "127.0.0.1"),
        ("2001:db8::1", "fd00::5", "::1"),
    ] {
        let attempt = connect_to(destination, 80);
        check_outbound(attempt, redirected(expected));
        let on_loopback = ConnectAttempt {
            on_loopback: true,
            ..attempt
        };
        check_outbound(on_loopback, redirected(expected_on_loopback));
    }
}

#[test]
fn local_skipped_and_proxy_connections_stay_direct() {
    let table = [
        ("127.0.0.1", 80, Counter::OutboundLocal),
        ("127.8.8.8", 80, Counter::OutboundLocal),
        ("0.0.0.0", 80, Counter::OutboundLocal),
        ("::", 80, Counter::OutboundLocal),
        ("::1", 80, Counter::OutboundLocal),
        ("10.1.0.5", 80, Counter::OutboundLocal),
        ("fd00::5", 80, Counter::OutboundLocal),
        ("192.168.7.1", 80, Counter::OutboundLocal),
        ("10.1.0.5", 4140, Counter::OutboundLocal),
        ("10.9.9.9", 4567, Counter::OutboundSkippedPort),
        ("10.9.9.9", 0, Counter::OutboundUnroutable),
        ("224.0.0.1", 80, Counter::OutboundUnroutable),
        ("255.255.255.255", 80, Counter::OutboundUnroutable),
        ("ff02::1", 80, Counter::OutboundUnroutable),
    ];
    for (destination, port, counter) in table {
        check_outbound(connect_to(destination, port), Outbound::Direct(counter));
    }
    let by_proxy = connect_by_proxy("10.9.9.9", 80);
    check_outbound(by_proxy, Outbound::Direct(Counter::OutboundProxy));
}

#[test]
fn foreign_bound_source_stays_direct() {
    let foreign = Outbound::Direct(Counter::OutboundForeignSource);
    for (source, expected) in [
        ("10.1.0.5", redirected("10.1.0.5")),
        ("192.168.7.1", redirected("10.1.0.5")),
        ("127.0.0.1", redirected("10.1.0.5")),
        ("127.0.0.2", foreign),
        ("127.255.255.254", foreign),
        ("::1", redirected("10.1.0.5")),
        ("10.9.0.1", foreign),
    ] {
        let attempt = ConnectAttempt {
            source: address(source),
            ..connect_to("10.9.9.9", 80)
        };
        check_outbound(attempt, expected);
    }
}

#[test]
fn pod_without_address_of_the_family_stays_direct() {
    let v4_only = PodConfig {
        v6: Address::UNSPECIFIED,
        ..pod()
    };
    let found = outbound(&v4_only, &connect_to("2001:db8::1", 80), own, |_| false);
    assert_eq!(found, Outbound::Direct(Counter::OutboundNoAddress));
}

#[test]
fn check_address_is_redirected_for_every_process() {
    let v4 = Outbound::Redirect(pod().v4);
    let v6 = Outbound::Redirect(pod().v6);
    let direct = Outbound::Direct(Counter::OutboundProxy);
    for (destination, port, expected) in [
        ("192.0.2.1", CHECK_PORT, v4),
        ("2001:db8::1", CHECK_PORT, v6),
        ("192.0.2.1", 80, direct),
        ("192.0.2.2", CHECK_PORT, direct),
    ] {
        check_outbound(connect_by_proxy(destination, port), expected);
    }
    let skips_everything = outbound(&pod(), &connect_to("192.0.2.1", CHECK_PORT), own, |_| true);
    assert_eq!(skips_everything, v4);
}

#[test]
fn single_family_pod_is_redirected_for_both_check_addresses() {
    let v6_only = PodConfig {
        v4: Address::UNSPECIFIED,
        ..pod()
    };
    let v4_only = PodConfig {
        v6: Address::UNSPECIFIED,
        ..pod()
    };
    for (pod, destination, expected) in [
        (v6_only, "192.0.2.1", "127.0.0.1"),
        (v4_only, "2001:db8::1", "::1"),
    ] {
        let found = outbound(&pod, &connect_to(destination, CHECK_PORT), own, |_| false);
        assert_eq!(found, redirected(expected));
    }
}

/// Nothing of the test pod listens on this port, nor on the proxy's ports.
const CLOSED_PORT: u16 = 81;

fn check_lookup(remote: &str, local: &str, local_port: u16, expected: LookupVerdict) {
    let lookup = SocketLookup {
        remote: address(remote),
        local: address(local),
        local_port,
    };
    let in_subnet = |source: &Address| source.same(&address("172.17.0.2"));
    let found = inbound(
        &pod(),
        &lookup,
        || false,
        own,
        |port| port == 4191,
        in_subnet,
        || local_port == CLOSED_PORT,
    );
    assert_eq!(found, expected, "{lookup:?}");
}

#[test]
fn lookups_are_steered_passed_or_skipped() {
    let inbound = LookupVerdict::Proxy(Role::Inbound);
    let outbound = LookupVerdict::Proxy(Role::Outbound);
    let local = LookupVerdict::Pass(Counter::InboundLocal);
    let skipped_port = LookupVerdict::Pass(Counter::InboundSkippedPort);
    let closed = LookupVerdict::Refuse(Counter::InboundClosed);
    let skipped_subnet = LookupVerdict::Pass(Counter::InboundSkippedSubnet);
    let table = [
        ("10.9.9.9", "10.1.0.5", 80, inbound),
        ("10.9.9.9", "10.1.0.5", 4140, inbound),
        ("10.9.9.9", "10.1.0.5", 4143, inbound),
        ("10.9.9.9", "10.77.0.1", 80, inbound),
        ("fe80::9", "fe80::5", 80, inbound),
        ("10.9.9.9", "10.1.0.5", 4191, skipped_port),
        ("10.9.9.9", "10.1.0.5", 81, closed),
        ("fe80::9", "fe80::5", 81, closed),
        ("172.17.0.2", "10.1.0.5", 81, skipped_subnet),
        ("192.168.7.1", "10.1.0.5", 81, local),
        ("172.17.0.2", "10.1.0.5", 80, skipped_subnet),
        ("10.1.0.5", "10.1.0.5", 4140, outbound),
        ("fd00::5", "fd00::5", 4140, outbound),
        ("192.168.7.1", "10.1.0.5", 4140, outbound),
        ("127.0.0.1", "10.1.0.5", 4140, outbound),
        ("127.0.0.1", "127.0.0.1", 4140, local),
        ("10.1.0.5", "10.1.0.5", 80, local),
        ("192.168.7.1", "10.1.0.5", 80, local),
        ("127.0.0.1", "127.0.0.1", 80, local),
        ("10.1.0.5", "10.1.0.5", 4143, local),
        // An unknown address of the pod, connected to from the pod: the kernel uses it as source
        // too.
        ("10.77.0.1", "10.77.0.1", 80, local),
    ];
    for (remote, local, port, expected) in table {
        check_lookup(remote, local, port, expected);
    }
}

fn proxy(cgroup: u64, registrations: u64) -> ProxyState {
    ProxyState {
        cgroup,
        registrations,
    }
}

#[test]
fn proxy_is_identified_by_its_cgroup() {
    assert!(!is_proxy(&proxy(0, 0), 7));
    assert!(!is_proxy(&proxy(0, 0), 0), "no_proxy is in no cgroup");
    assert!(is_proxy(&proxy(7, 1), 7));
    assert!(!is_proxy(&proxy(7, 1), 8));
}

#[test]
fn process_with_proxy_uid_connects_as_proxy_until_one_listens() {
    for (has_uid, any_listener, expected) in [
        (true, false, true),
        (true, true, false),
        (false, false, false),
        (false, true, false),
    ] {
        assert_eq!(may_connect(has_uid, || any_listener), expected);
    }
    assert!(!may_connect(false, || unreachable!("not asked for others")));
}

#[test]
fn may_bind_requires_proxy_cgroup_or_no_listener() {
    let table = [
        (proxy(0, 0), 7, false, true),
        (proxy(7, 1), 7, true, true),
        (proxy(7, 1), 8, true, false),
        (proxy(7, 1), 8, false, true),
    ];
    for (state, cgroup, any_listener, expected) in table {
        let found = may_bind(&state, cgroup, || any_listener);
        assert_eq!(found, expected, "{state:?} {cgroup} {any_listener}");
    }
}

#[test]
fn may_register_rejects_outdated_binders() {
    let binder = |cgroup, registrations| Binder {
        cgroup,
        registrations,
    };
    let table = [
        (proxy(0, 0), binder(7, 0), true),
        // Another listener of the same proxy.
        (proxy(7, 1), binder(7, 0), true),
        // A successor that bound after the old proxy had closed its listeners.
        (proxy(7, 3), binder(8, 3), true),
        // Bound early, but listens after the proxy.
        (proxy(7, 1), binder(8, 0), false),
        (proxy(7, 4), binder(8, 3), false),
    ];
    for (state, binder, expected) in table {
        let found = may_register(&state, &binder);
        assert_eq!(found, expected, "{state:?} {binder:?}");
    }
}

#[test]
fn listener_role_is_derived_from_port() {
    assert_eq!(listener_role(&pod(), 4140), Some(Role::Outbound));
    assert_eq!(listener_role(&pod(), 4143), Some(Role::Inbound));
    assert_eq!(listener_role(&pod(), 4191), None);
}

#[test]
fn only_original_dst_options_have_a_family() {
    assert_eq!(original_dst_family(0, 80), Some(Family::V4));
    assert_eq!(original_dst_family(41, 80), Some(Family::V6));
    assert_eq!(original_dst_family(1, 80), None);
    assert_eq!(original_dst_family(6, 80), None);
    assert_eq!(original_dst_family(0, 64), None);
}

#[test]
fn original_dst_is_stored_or_local() {
    let stored = |side: Side| OriginalDst {
        address: address("10.9.9.9"),
        port: 80,
        side: side as u16,
    };
    let accepted = stored(Side::Accepted);
    let client = stored(Side::Client);
    let table = [
        (Some(&accepted), true, 4140, OriginalDstSource::Stored),
        (Some(&accepted), false, 4140, OriginalDstSource::Stored),
        (Some(&client), false, 50000, OriginalDstSource::Native),
        (None, true, 80, OriginalDstSource::Local),
        (None, true, 4143, OriginalDstSource::Local),
        (None, true, 4140, OriginalDstSource::Native),
        (None, false, 80, OriginalDstSource::Native),
    ];
    for (stored, by_proxy, port, expected) in table {
        let found = original_dst(&pod(), stored, by_proxy, port, || false);
        assert_eq!(found, expected, "{stored:?} {by_proxy} {port}");
    }
}

#[test]
fn original_dst_is_native_behind_packet_filter() {
    let split = PodConfig { flags: 0, ..pod() };
    for port in [4143, 80] {
        let found = original_dst(&split, None, true, port, || false);
        assert_eq!(found, OriginalDstSource::Native);
    }
}

#[test]
fn bypassing_requests_are_detected() {
    let check = |source: &str, destination: &str, port: u16, by_proxy: bool| {
        let request = TcpSyn {
            source: address(source),
            destination: address(destination),
            port,
        };
        let in_subnet = |source: &Address| {
            ["172.17.0.2", "10.1.0.5"]
                .iter()
                .any(|known| address(known).same(source))
        };
        bypasses_proxy(
            &pod(),
            &request,
            by_proxy,
            own,
            |port| port == 4567,
            in_subnet,
        )
    };
    assert!(check("10.1.0.5", "10.9.9.9", 80, false));
    assert!(check("fd00::5", "2001:db8::9", 80, false));
    // A foreign source.
    assert!(check("10.77.0.1", "10.9.9.9", 80, false));
    assert!(!check("10.1.0.5", "10.9.9.9", 80, true));
    assert!(!check("10.1.0.5", "10.9.9.9", 4567, false));
    assert!(!check("10.1.0.5", "192.0.2.1", CHECK_PORT, false));
    // A network inside the pod whose sources are skipped.
    assert!(!check("172.17.0.2", "10.9.9.9", 80, false));
}

#[test]
fn ipv6_passes_if_the_pod_does_not_redirect_it() {
    let pod = PodConfig {
        flags: FLAG_INBOUND | FLAG_PASS_IPV6,
        ..pod()
    };
    let check = |destination: &str, port: u16, expected: Outbound| {
        let found = outbound(&pod, &connect_to(destination, port), own, |_| false);
        assert_eq!(found, expected, "{destination}");
    };
    let direct = Outbound::Direct(Counter::OutboundNoAddress);
    check("2001:db8::9", 80, direct);
    check("2001:db8::1", CHECK_PORT, direct);
    check("10.9.9.9", 80, redirected("10.1.0.5"));
    check("::ffff:10.9.9.9", 80, redirected("10.1.0.5"));
    let arriving = |remote: &str, local: &str| {
        let lookup = SocketLookup {
            remote: address(remote),
            local: address(local),
            local_port: 8080,
        };
        inbound(&pod, &lookup, || false, own, |_| false, |_| false, || false)
    };
    let passed = LookupVerdict::Pass(Counter::InboundSkippedSubnet);
    assert_eq!(arriving("2001:db8::9", "fd00::5"), passed);
    let steered = LookupVerdict::Proxy(Role::Inbound);
    assert_eq!(arriving("10.9.9.9", "10.1.0.5"), steered);
    let leaves = |source: &str, destination: &str| {
        let request = TcpSyn {
            source: address(source),
            destination: address(destination),
            port: 80,
        };
        bypasses_proxy(&pod, &request, false, own, |_| false, |_| false)
    };
    assert!(!leaves("fd00::5", "2001:db8::9"));
    assert!(leaves("10.1.0.5", "10.9.9.9"));
}

#[test]
fn redirect_port_depends_on_the_destination() {
    let port = |pod: &PodConfig, destination: &str, port: u16, target: &str| {
        let attempt = connect_to(destination, port);
        redirect_port(
            pod,
            RedirectPorts::OF_POD,
            &attempt,
            &address(target),
            || true,
        )
    };
    let full = |destination: &str, port_: u16| port(&pod(), destination, port_, "10.1.0.5");
    assert!(full("10.9.9.9", 80) >= REDIRECT_PORT_MIN);
    assert_eq!(full("10.9.9.9", 80), full("10.9.9.9", 80));
    assert_ne!(full("10.9.9.9", 80), full("10.9.9.9", 81));
    // Where the kernel finds the listener by itself, and where the destination cannot be stored.
    assert_eq!(port(&pod(), "10.9.9.9", 80, "127.0.0.1"), 4140);
    assert_eq!(full("192.0.2.1", CHECK_PORT), 4140);
    let split = PodConfig { flags: 0, ..pod() };
    assert_eq!(port(&split, "10.9.9.9", 80, "10.1.0.5"), 4140);
    let attempt = connect_to("10.9.9.9", 80);
    let target = address("10.1.0.5");
    let without_room = redirect_port(&pod(), RedirectPorts::OF_POD, &attempt, &target, || false);
    assert_eq!(without_room, 4140);
}

/// Endpoints of a Service and ports of a host differ in few bits.
#[test]
fn redirect_ports_of_similar_destinations_rarely_collide() {
    let count = 200;
    let distinct = |port_of: &dyn Fn(u16) -> u16| {
        let ports: std::collections::BTreeSet<u16> = (0..count).map(port_of).collect();
        ports.len()
    };
    let redirected = |destination: &str, port: u16| {
        redirect_port(
            &pod(),
            RedirectPorts::OF_POD,
            &connect_to(destination, port),
            &address("10.1.0.5"),
            || true,
        )
    };
    // With 200 destinations on 4,536 ports, five share one on average.
    let by_address = distinct(&|number| redirected(&format!("10.244.1.{number}"), 8080));
    let by_port = distinct(&|number| redirected("10.244.1.1", 8000 + number));
    let by_v6 = distinct(&|number| redirected(&format!("fd00::{number:x}"), 8080));
    for distinct in [by_address, by_port, by_v6] {
        assert!(distinct > 185, "{distinct}");
    }
}

#[test]
fn redirected_connections_are_known_by_what_is_in_flight() {
    let from_pod = |port: u16, in_flight: bool| {
        let lookup = SocketLookup {
            remote: address("10.1.0.5"),
            local: address("10.1.0.5"),
            local_port: port,
        };
        inbound(
            &pod(),
            &lookup,
            || in_flight,
            own,
            |_| false,
            |_| false,
            || true,
        )
    };
    let local = LookupVerdict::Pass(Counter::InboundLocal);
    let outbound = LookupVerdict::Proxy(Role::Outbound);
    assert_eq!(from_pod(REDIRECT_PORT_MIN, true), outbound);
    assert_eq!(from_pod(u16::MAX, true), outbound);
    assert_eq!(from_pod(REDIRECT_PORT_MIN, false), local);
    assert_eq!(from_pod(8080, true), local);
    assert_eq!(from_pod(4140, false), outbound);
}

#[test]
fn redirected_connection_whose_destination_is_lost_has_none() {
    let of = |port: u16, redirected: bool| {
        let pod = PodConfig {
            inbound_port: u16::MAX,
            ..pod()
        };
        original_dst(&pod, None, true, port, || redirected)
    };
    assert_eq!(of(REDIRECT_PORT_MIN, true), OriginalDstSource::Lost);
    assert_eq!(of(REDIRECT_PORT_MIN, false), OriginalDstSource::Local);
    assert_eq!(of(u16::MAX, true), OriginalDstSource::Local);
    assert_eq!(of(8080, true), OriginalDstSource::Local);
    assert_eq!(of(4140, true), OriginalDstSource::Native);
    let of_application = original_dst(&pod(), None, false, REDIRECT_PORT_MIN, || true);
    assert_eq!(of_application, OriginalDstSource::Native);
}

#[test]
fn proxy_ports_are_open_and_not_recorded() {
    let arriving = |local_port| {
        let lookup = SocketLookup {
            remote: address("10.9.9.9"),
            local: address("10.1.0.5"),
            local_port,
        };
        inbound(
            &pod(),
            &lookup,
            || false,
            own,
            |_| false,
            |_| false,
            || true,
        )
    };
    for port in [4140, 4143] {
        assert_eq!(arriving(port), LookupVerdict::Proxy(Role::Inbound));
        assert!(!is_recorded(Some(&pod()), &address("10.1.0.5"), port));
        // Before the pod is enrolled, its proxy's ports are not known.
        assert!(is_recorded(None, &address("10.1.0.5"), port));
    }
    assert!(is_recorded(Some(&pod()), &Address::UNSPECIFIED, 80));
    for loopback in ["127.0.0.1", "127.3.3.3", "::1", "::ffff:127.0.0.1"] {
        assert!(!is_recorded(Some(&pod()), &address(loopback), 80));
    }
}

#[test]
fn port_is_open_by_the_addresses_of_its_listeners() {
    let check = |listener: &str, local: &str, expected: bool| {
        let listener = address(listener);
        let found = is_open(&address(local), |address| address.same(&listener));
        assert_eq!(found, expected, "{listener:?} {local}");
    };
    check("0.0.0.0", "10.1.0.5", true);
    check("0.0.0.0", "fd00::5", false);
    check("::", "fd00::5", true);
    // It may be dual-stack.
    check("::", "10.1.0.5", true);
    check("10.1.0.5", "10.1.0.5", true);
    check("10.1.0.6", "10.1.0.5", false);
    check("fd00::5", "fd00::5", true);
    check("fd00::5", "fd00::6", false);
    check("10.1.0.5", "fd00::5", false);
    // Sockets on loopback are not recorded.
    check("10.1.0.5", "127.0.0.1", true);
    check("10.1.0.5", "::1", true);
}
