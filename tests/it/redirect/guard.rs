//! The guard, which counts or drops connections that bypass the proxy, and addresses that the agent
//! discovers itself.

use std::net::IpAddr;

use mesh_core::node::{Request, Tier};
use mesh_test_support::command::run;
use mesh_test_support::eventually::eventually;
use mesh_test_support::machine::kernel;
use mesh_test_support::network::Namespace;
use mesh_test_support::require_root;
use serde_json::{Value, json};

use super::fixture::{APP, PORT, PORT2, RedirectFixture, SKIPPED};
use super::lifecycle::entries;
use crate::harness::node::{APPLICATION, Node, Pod};

const VIA_PROXY: &str =
    "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4";

/// Linux from here on attaches the guard.
const GUARD_SINCE: (u32, u32) = (6, 6);

/// Starts a node whose guard has this mode. Returns none, and prints that the test is skipped, on
/// an older kernel if the agent reports there that the guard is not in effect.
fn start_guarded(tier: Tier, mode: &str) -> Option<Node> {
    let node = Node::start_with(tier, &["--guard", mode]);
    let warnings = warnings(&node);
    let reported = format!("--guard {mode} is not in effect: this kernel cannot attach the guard");
    if kernel() < GUARD_SINCE && warnings.contains(&reported) {
        println!("skipped: {warnings}");
        return None;
    }
    Some(node)
}

fn warnings(node: &Node) -> String {
    node.request(&Request::Status)["status"]["warnings"].to_string()
}

/// Returns the counters of the guard of the node's only meshed pod: passed and dropped.
fn seen(node: &Node) -> (u64, u64) {
    let pods = node.request(&Request::Pods);
    let connections = &pods["pods"][0]["connections"];
    let count = |name: &str| connections[name].as_u64().unwrap_or(0);
    (count("guard_passed"), count("guard_dropped"))
}

/// Sends self-made SYN packets; returns which of the ports responded.
fn request(fixture: &RedirectFixture<'_>, how: &str, ports: &[u16]) -> Vec<Value> {
    let own = fixture.pod.v4.to_string();
    let targets: Vec<String> = ports.iter().map(|port| fixture.peer4(*port)).collect();
    let mut args = vec!["syn", how, own.as_str()];
    args.extend(targets.iter().map(String::as_str));
    let events = fixture.pod.app(args).remaining_events();
    assert_eq!(events.len(), ports.len(), "{events:?}");
    events
        .iter()
        .map(|event| event["answered"].clone())
        .collect()
}

/// Creates a network namespace inside the pod, whose traffic the pod forwards.
fn namespace_inside(pod: &Pod<'_>) -> Namespace {
    let (outer, inner) = (&pod.namespace, Namespace::new());
    let (_, node) = pod.subnet();
    let subnet = format!("198.19.{node}");
    outer.link("inner0", &inner, "outer0");
    outer.ip(&format!("addr add {subnet}.1/24 dev inner0"));
    outer.ip("link set inner0 up");
    outer.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
    inner.ip(&format!("addr add {subnet}.2/24 dev outer0"));
    inner.ip("link set outer0 up");
    inner.ip(&format!("route add default via {subnet}.1"));
    // The return route; removed with the node's bridge.
    run(format!("ip route add {subnet}.0/24 via {}", pod.v4));
    inner
}

#[test]
fn guard_counts_proxy_bypasses() {
    require_root!();
    let Some(node) = start_guarded(Tier::Full, "count") else {
        return;
    };
    let fixture = RedirectFixture::build(&node);
    let inner = namespace_inside(&fixture.pod);
    let mut passed = 0;
    let mut check = |what: &str, more: u64| {
        passed += more;
        assert_eq!(seen(&node), (passed, 0), "{what}");
    };

    assert_eq!(fixture.connect(""), VIA_PROXY);
    check("a redirected connection", 0);
    let own = fixture.as_proxy(["connect", &fixture.peer4(PORT)]);
    assert!(own.starts_with("direct"), "{own}");
    check("the proxy's own connection", 0);
    let skipped = fixture.app(["connect", &fixture.peer4(SKIPPED)]);
    assert!(skipped.starts_with("direct"), "{skipped}");
    let loopback = fixture.app("connect 127.0.0.1:8001");
    assert!(loopback.starts_with("app"), "{loopback}");
    check("a skipped port, and loopback", 0);

    assert_eq!(request(&fixture, "raw", &[PORT, SKIPPED]), [true, true]);
    check("a raw socket", 1);
    assert_eq!(request(&fixture, "packet", &[PORT, SKIPPED]), [true, true]);
    check("a packet socket", 1);
    let foreign = fixture.connect(&format!("--transparent --bind {}:0", fixture.foreign));
    assert!(foreign.starts_with("direct from FOREIGN4"), "{foreign}");
    check("a source address that is not the pod's (trap 11)", 1);
    let enter = format!("--inner-netns {}", inner.path().display());
    let connect = ["connect", &fixture.peer4(PORT)];
    let probe = fixture.pod.probe(APPLICATION, enter, connect);
    let reached = fixture.describe(&probe.remaining_events());
    assert!(reached.starts_with("direct from 198.19."), "{reached}");
    check("a network namespace inside the pod (trap 33)", 1);
    let log = node.agent_log();
    assert!(
        log.contains("Pod sent connection requests around its proxy"),
        "{log}"
    );
}

#[test]
fn guard_drops_proxy_bypasses() {
    require_root!();
    // On the split tier, whose inbound half is a packet filter, and where connections are
    // redirected to loopback.
    for tier in [Tier::Full, Tier::Split] {
        let Some(node) = start_guarded(tier, "drop") else {
            return;
        };
        let empty = entries(&node);
        let fixture = RedirectFixture::build(&node);
        let raw = || request(&fixture, "raw", &[PORT, SKIPPED]);
        let dropped = |count: u64| assert_eq!(seen(&node), (0, count), "{tier}");
        assert_eq!(raw(), [false, true], "{tier}");
        dropped(1);
        assert_eq!(
            request(&fixture, "packet", &[PORT, PORT2, SKIPPED]),
            [false, false, true]
        );
        dropped(3);
        let inbound = fixture.arrive(APP);
        assert!(inbound.starts_with("proxy 4143"), "{inbound}");
        let outbound = fixture.connect("");
        assert!(outbound.starts_with("proxy 4140"), "{outbound}");
        dropped(3);

        // The guard survives a restart, and is removed immediately when disabled.
        node.restart_agent();
        assert_eq!(raw(), [false, true], "{tier}");
        dropped(4);
        node.restart_agent_with(&[]);
        assert_eq!(raw(), [true, true], "{tier}");
        let guards = |node: &Node| {
            let pins = node.pinned();
            let in_guard = |pin: &&std::path::PathBuf| pin.to_string_lossy().contains("/guard/");
            pins.iter().filter(in_guard).count()
        };
        assert_eq!(guards(&node), 0);

        // Enabled again, also for a running pod and a pair of interfaces that the pod created.
        fixture.pod.namespace.ip("link add extra0 type veth");
        node.restart_agent_with(&["--guard", "drop"]);
        assert_eq!(guards(&node), 3);
        assert_eq!(raw(), [false, true], "{tier}");
        drop(fixture);
        assert_eq!(guards(&node), 0);
        assert_eq!(entries(&node), empty);
    }
}

#[test]
fn guard_keeps_connections_from_before_enrolment() {
    require_root!();
    let Some(node) = start_guarded(Tier::Full, "drop") else {
        return;
    };
    let (peer, pod) = (node.plain_pod("peer"), node.pod_before_enrolment("app"));
    let target = format!("{}:{PORT}", peer.v4);
    let server = peer.serve(APPLICATION, "--greet direct --hold", &target);
    let mut open = pod.app(["connect", &target, "--stay"]);
    assert_eq!(open.next_event()["greeting"]["reached"], "direct");
    pod.enrol();
    // Its socket is older than the enrolment (trap 34), but its packets are not.
    open.write_line("");
    assert_eq!(open.remaining_events(), [json!({"finished": true})]);
    assert_eq!(seen(&node), (0, 0));
    drop(server);
}

#[test]
fn unavailable_guard_is_reported_in_status() {
    require_root!();
    let node = Node::start_with(Tier::Nft, &["--guard", "drop"]);
    let warnings = warnings(&node);
    assert!(
        warnings.contains("--guard drop is not in effect: tier nft has no kernel programs"),
        "{warnings}"
    );
}

#[test]
fn pod_address_changes_update_redirection() {
    require_root!();
    let node = Node::start(Tier::Full);
    let fixture = RedirectFixture::build(&node);
    let (subnet, _) = fixture.pod.subnet();
    let new = format!("{subnet}.250");
    let in_pod = |change: &str| {
        let interface = format!("addr {change} {new}/24 dev eth0");
        fixture.pod.namespace.ip(&interface);
    };
    in_pod("add");
    let followed =
        format!("proxy 4140, original PEER4:7001 from {new}, app sees peer PEER4:7001 self {new}");
    eventually("connections from the new address are redirected", || {
        let seen = fixture.connect(&format!("--bind {new}:0"));
        if seen == followed { Ok(()) } else { Err(seen) }
    });
    // Applications still use the pod's primary address.
    assert_eq!(fixture.connect(""), VIA_PROXY);

    in_pod("del");
    eventually("the agent removes the address", || {
        let pods = node.request(&Request::Pods);
        let addresses = pods["pods"][0]["addresses"].as_array();
        let is_new = |address: &Value| {
            let address = address
                .as_str()
                .and_then(|text| text.parse::<IpAddr>().ok());
            address == new.parse().ok()
        };
        !addresses.is_some_and(|known| known.iter().any(is_new))
    });
}
