//! Source ports of connections that their client closes first: for a minute the kernel does not
//! choose such a port again for the same destination.

use mesh_core::node::Tier;
use mesh_test_support::campaign::is_long;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::{Value, json};

use super::fixture::{APP, PORT, PROXY_ADDRESSES, RedirectFixture, both};
use crate::harness::node::{APPLICATION, Node, PROXY, Pod};

const DESTINATIONS: u16 = 10;
/// Source ports of the pod, and connections to all destinations: five for each port.
const PORTS: u16 = 400;
const CONNECTIONS: u32 = 2_000;
/// The rate of two minutes: fifteen a second to each destination.
const RATE: u32 = 150;
const LONG_PORTS: u16 = 1_000;
const LONG_CONNECTIONS: u32 = RATE * 120;

fn limit_ports(pod: &Pod<'_>, count: u16) {
    let last = 40_000 + count - 1;
    let limit = format!("echo 40000 {last} > /proc/sys/net/ipv4/ip_local_port_range");
    pod.namespace.run(["sh", "-c", &limit]);
}

/// The destinations of both families, as the probe takes them.
fn destinations(peer: &Pod<'_>) -> [String; 2] {
    let ports = PORT..PORT + DESTINATIONS;
    let v4: Vec<String> = { ports.clone() }
        .map(|port| format!("{}:{port}", peer.v4))
        .collect();
    let v6: Vec<String> = ports.map(|port| format!("[{}]:{port}", peer.v6)).collect();
    [v4.join(","), v6.join(",")]
}

/// Opens and closes connections one after the other; returns the errors.
fn churn(pod: &Pod<'_>, destinations: &str, count: u32, options: &str) -> Value {
    let probe = format!("churn {destinations} {count} --time-wait {options}");
    let outcome = pod.app(probe).remaining_events().pop().expect("a summary");
    let reached = outcome["reached"]["proxy"].as_u64().unwrap_or(0);
    let failed = outcome["failed"].as_u64().unwrap_or(0);
    assert_eq!(reached + failed, u64::from(count), "{outcome}");
    outcome["errors"].clone()
}

fn check(tier: Tier, count: impl Fn(&Pod<'_>, &str)) {
    require_root!();
    let node = Node::start(tier);
    let (peer, pod) = (node.plain_pod("peer"), node.meshed_pod("app", &[]));
    // The listeners leave the first end to their clients.
    let ports = (PORT..PORT + DESTINATIONS).map(both);
    let ports = ports.collect::<Vec<_>>().join(" ");
    let _peer = peer.serve(APPLICATION, "--hold", ports);
    let _proxy = pod.serve(PROXY, "--greet proxy --hold", PROXY_ADDRESSES);
    for destinations in destinations(&peer) {
        count(&pod, &destinations);
    }
}

fn check_burst(tier: Tier) {
    check(tier, |pod, destinations| {
        limit_ports(pod, PORTS);
        let errors = churn(pod, destinations, CONNECTIONS, "");
        assert_eq!(errors, json!({}), "{tier} {destinations}");
    });
}

#[test]
fn ports_in_time_wait_are_counted_by_destination_on_full_tier() {
    check_burst(Tier::Full);
}

#[test]
fn ports_in_time_wait_are_counted_by_destination_on_nft_tier() {
    check_burst(Tier::Nft);
}

#[test]
fn ports_in_time_wait_are_counted_by_destination_on_iptables_tier() {
    check_burst(Tier::Iptables);
}

/// Connections are redirected to loopback, where the kernel reuses a port after a second.
#[test]
fn ports_in_time_wait_are_reused_soon_on_split_tier() {
    check(Tier::Split, |pod, destinations| {
        limit_ports(pod, PORTS);
        assert_eq!(churn(pod, destinations, PORTS.into(), ""), json!({}));
        // Fewer than become free in the same time, so that it does not wait for its own ports.
        eventually("ports are free again", || {
            let errors = churn(pod, destinations, 50, "--rate 100");
            (errors == json!({})).then_some(()).ok_or(errors)
        });
    });
}

fn check_rate(tier: Tier) {
    if !is_long("two minutes of connections") {
        return;
    }
    check(tier, |pod, destinations| {
        limit_ports(pod, LONG_PORTS);
        let rate = format!("--rate {RATE}");
        let errors = churn(pod, destinations, LONG_CONNECTIONS, &rate);
        assert_eq!(errors, json!({}), "{tier} {destinations}");
    });
}

#[test]
fn two_minutes_of_connections_find_ports_on_full_tier() {
    check_rate(Tier::Full);
}

#[test]
fn two_minutes_of_connections_find_ports_on_split_tier() {
    check_rate(Tier::Split);
}

#[test]
fn two_minutes_of_connections_find_ports_on_nft_tier() {
    check_rate(Tier::Nft);
}

#[test]
fn two_minutes_of_connections_find_ports_on_iptables_tier() {
    check_rate(Tier::Iptables);
}

/// The full tier redirects to ports of the pod's own address. An application may listen on them.
#[test]
fn application_on_a_redirect_port_gets_its_own_connections_only() {
    require_root!();
    let node = Node::start(Tier::Full);
    let fixture = RedirectFixture::build(&node);
    let peer = fixture.peer4(PORT);
    let mut held = fixture.pod.app(["connect", &peer, "--stay"]);
    let greeting = held.next_event()["greeting"].clone();
    let local = greeting["local"].as_str().expect("a local address");
    let (_, port) = local.rsplit_once(':').expect("a port");
    let port: u16 = port.parse().expect("a number");
    assert_ne!(port, 4140, "{greeting}");
    assert_ne!(port, APP);
    // Also while a connection of the proxy has the port.
    let _app = fixture.pod.serve(APPLICATION, "--greet app", both(port));
    let own = fixture.own4(port);
    let observations = [
        fixture.app(["connect", &own]),
        fixture.app(["connect", &peer]),
        fixture.peer_app(["connect", &own]),
    ];
    let reached: Vec<&str> = observations
        .iter()
        .map(|line| line.split(',').next().unwrap_or_default())
        .collect();
    let expected = ["app from OWN4", "proxy 4140", "proxy 4143"];
    assert_eq!(reached, expected, "{observations:?}");
    held.write_line("");
    assert_eq!(held.remaining_events(), [json!({"finished": true})]);
}
