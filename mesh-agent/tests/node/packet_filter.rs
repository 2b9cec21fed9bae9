//! The interception contract on both packet filters of the kernel: one table of expectations.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mesh_agent::iptables;
use mesh_agent::nft::Table;
use mesh_agent::redirect::{PodRef, RedirectSpec};
use mesh_agent::rules::{Directions, Rules};
use mesh_core::ports::MAX_RANGES;
use mesh_test_support::network::Namespace;
use mesh_test_support::require_root;

use crate::network::{Pair, request, request_as, serve};

/// The packet filter under test, in the pod's namespace.
trait Filter {
    fn replace(&self, pod: &Namespace, rules: &Rules);
    fn remove(&self, pod: &Namespace);
    fn verify(&self, pod: &Namespace, rules: &Rules) -> Result<(), String>;
}

struct Nft;
struct Iptables;

impl Filter for Nft {
    fn replace(&self, pod: &Namespace, rules: &Rules) {
        pod.enter(|| Table::open().unwrap().replace(rules).unwrap());
    }

    fn remove(&self, pod: &Namespace) {
        pod.enter(|| Table::open().unwrap().remove().unwrap());
    }

    fn verify(&self, pod: &Namespace, rules: &Rules) -> Result<(), String> {
        pod.enter(|| {
            Table::open()
                .unwrap()
                .verify(rules)
                .map_err(|error| error.to_string())
        })
    }
}

impl Filter for Iptables {
    fn replace(&self, pod: &Namespace, rules: &Rules) {
        pod.enter(|| iptables::replace(rules).unwrap());
    }

    fn remove(&self, pod: &Namespace) {
        pod.enter(|| iptables::remove().unwrap());
    }

    fn verify(&self, pod: &Namespace, rules: &Rules) -> Result<(), String> {
        pod.enter(|| iptables::verify(rules).map_err(|error| error.to_string()))
    }
}

fn rules(pairs: &[(&str, &str)], directions: Directions) -> Rules {
    let annotations: BTreeMap<String, String> = pairs
        .iter()
        .map(|(key, value)| (format!("config.linkerd.io/{key}"), (*value).to_owned()))
        .collect();
    let spec = RedirectSpec::from_annotations(&PodRef::default(), &annotations).unwrap();
    Rules::new(&spec, directions)
}

/// Creates a pod with a proxy and an application, and a neighbour with services.
fn pair_with_services() -> Pair {
    let pair = Pair::new();
    serve(&pair.pod, "outbound", "127.0.0.1:4140");
    serve(&pair.pod, "outbound", "[::1]:4140");
    serve(&pair.pod, "inbound", "[::]:4143");
    serve(&pair.pod, "admin", "[::]:4191");
    serve(&pair.pod, "app", "[::]:8080");
    serve(&pair.pod, "skipped-app", "[::]:8081");
    serve(&pair.peer, "service", "[::]:9000");
    serve(&pair.peer, "skipped-service", "[::]:9005");
    pair.peer.ip("addr add 10.241.7.1/24 dev eth0");
    pair.pod.ip("route add 10.241.7.0/24 dev eth0");
    pair
}

fn contract(filter: &dyn Filter) {
    require_root!();
    let pair = pair_with_services();
    let rules = rules(
        &[
            ("skip-inbound-ports", "8081"),
            ("skip-outbound-ports", "9001,9003-9007"),
            ("skip-subnets", "10.241.7.0/24"),
        ],
        Directions::Both,
    );
    filter.replace(&pair.pod, &rules);
    // Applying again must not duplicate the rules.
    filter.replace(&pair.pod, &rules);
    filter.verify(&pair.pod, &rules).unwrap();

    for (pod, peer) in [(pair.pod_v4, pair.peer_v4), (pair.pod_v6, pair.peer_v6)] {
        let at = |ip, port| SocketAddr::new(ip, port);
        let outbound = |port| request(&pair.pod, at(peer, port));
        assert_eq!(outbound(9000), format!("outbound {}", at(peer, 9000)));
        assert_eq!(outbound(9005), "skipped-service -");
        assert_eq!(outbound(1), format!("outbound {}", at(peer, 1)));
        assert_eq!(request_as(2102, &pair.pod, at(peer, 9000)), "service -");
        assert_eq!(request(&pair.pod, at(pod, 8080)), "app -", "own address");

        let inbound = |port| request(&pair.peer, at(pod, port));
        assert_eq!(inbound(8080), format!("inbound {}", at(pod, 8080)));
        assert_eq!(inbound(4140), format!("inbound {}", at(pod, 4140)));
        assert_eq!(inbound(8081), "skipped-app -");
        assert_eq!(inbound(4191), "admin -");
    }
    for loopback in ["127.0.0.1:8080", "[::1]:8080"] {
        assert_eq!(request(&pair.pod, loopback.parse().unwrap()), "app -");
    }
    // From a skipped source: the route selects the source address.
    pair.peer
        .ip("route replace 10.241.0.2/32 dev eth0 src 10.241.7.1");
    assert_eq!(
        request(&pair.peer, SocketAddr::new(pair.pod_v4, 8080)),
        "app -"
    );
    pair.peer.ip("route del 10.241.0.2/32 dev eth0");

    filter.remove(&pair.pod);
    filter.remove(&pair.pod);
    assert_eq!(
        request(&pair.pod, SocketAddr::new(pair.peer_v4, 9000)),
        "service -"
    );
    assert_eq!(
        request(&pair.peer, SocketAddr::new(pair.pod_v6, 8080)),
        "app -"
    );
    filter.verify(&pair.pod, &rules).unwrap_err();
}

#[test]
fn nftables_keeps_the_contract() {
    contract(&Nft);
}

#[test]
fn iptables_keeps_the_contract() {
    contract(&Iptables);
}

#[test]
fn inbound_only_rules_do_not_affect_outbound_connections() {
    require_root!();
    for filter in [&Nft as &dyn Filter, &Iptables] {
        let pair = pair_with_services();
        let rules = rules(&[], Directions::InboundOnly);
        filter.replace(&pair.pod, &rules);
        filter.verify(&pair.pod, &rules).unwrap();
        let service = SocketAddr::new(pair.peer_v4, 9000);
        let app = SocketAddr::new(pair.pod_v4, 8080);
        assert_eq!(request(&pair.pod, service), "service -");
        assert_eq!(request(&pair.pod, app), "app -", "own address");
        assert_eq!(request(&pair.peer, app), format!("inbound {app}"));
    }
}

#[test]
fn foreign_changes_are_detected() {
    require_root!();
    let rules = rules(&[("skip-subnets", "10.0.0.0/8,fd00::/8")], Directions::Both);
    let check = |filter: &dyn Filter, command: &str, expect: &str| {
        let pod = Namespace::new();
        filter.replace(&pod, &rules);
        filter.verify(&pod, &rules).unwrap();
        pod.run(command);
        let error = filter.verify(&pod, &rules).unwrap_err();
        assert!(error.contains(expect), "{command}: {error}");
    };
    check(&Nft, "nft flush ruleset", "it is missing or empty");
    check(
        &Nft,
        "nft insert rule inet mesh_redirect outbound accept",
        "chain outbound has \"a foreign rule\" instead of \"check address 192.0.2.1",
    );
    check(
        &Nft,
        "nft flush chain inet mesh_redirect outbound",
        "the rule \"check address 192.0.2.1",
    );
    check(
        &Iptables,
        "iptables-legacy -t nat -F OUTPUT",
        "OUTPUT does not jump to MESH_PROXY_OUTBOUND (V4)",
    );
    check(
        &Iptables,
        "ip6tables-legacy -t nat -I MESH_PROXY_INBOUND -j ACCEPT",
        "chain MESH_PROXY_INBOUND has foreign rules (V6)",
    );
}

#[test]
fn longest_port_list_is_accepted() {
    require_root!();
    let ports = (1..).step_by(2).take(MAX_RANGES);
    let ports: Vec<String> = ports.map(|port: u16| port.to_string()).collect();
    let rules = rules(
        &[("skip-outbound-ports", &ports.join(","))],
        Directions::Both,
    );
    for filter in [&Nft as &dyn Filter, &Iptables] {
        let pod = Namespace::new();
        filter.replace(&pod, &rules);
        filter.verify(&pod, &rules).unwrap();
    }
}
