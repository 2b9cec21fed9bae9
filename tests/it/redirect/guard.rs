//! The guard, which counts or drops connections that bypass the proxy, and addresses that the agent
//! discovers itself.

use std::net::IpAddr;

use mesh_core::node::{Request, Tier};
use serde_json::Value;

use super::fixture::{PORT, PORT2, RedirectFixture, SKIPPED, serve};
use super::lifecycle::entries;
use crate::harness::node::{Node, Pod};
use crate::harness::process::run;
use crate::harness::{privileged, wait_until};

const VIA_PROXY: &str =
    "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4";

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
    let events = fixture.pod.app(&args).remaining_events();
    assert_eq!(events.len(), ports.len(), "{events:?}");
    events
        .iter()
        .map(|event| event["answered"].clone())
        .collect()
}

/// A network namespace inside the pod, whose traffic the pod forwards; removed with its name.
struct Inner {
    name: String,
}

impl Inner {
    fn build(pod: &Pod<'_>) -> Self {
        let inner = Self {
            name: format!("{}-inner", pod.namespace()),
        };
        let (_, node) = pod.subnet();
        let subnet = format!("198.19.{node}");
        run("ip", &["netns", "add", &inner.name]).expect("a namespace");
        let link = [
            "link", "add", "inner0", "type", "veth", "peer", "name", "outer0", "netns",
        ];
        pod.run("ip", &[&link[..], &[&inner.name]].concat())
            .expect("a link");
        let in_pod = |args: &[&str]| pod.run("ip", args).expect("ip in the pod");
        in_pod(&["addr", "add", &format!("{subnet}.1/24"), "dev", "inner0"]);
        in_pod(&["link", "set", "inner0", "up"]);
        pod.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
            .expect("forwarding");
        let inside = |args: &[&str]| {
            run("ip", &[&["-n", &inner.name], args].concat()).expect("ip in the inner namespace");
        };
        inside(&["addr", "add", &format!("{subnet}.2/24"), "dev", "outer0"]);
        inside(&["link", "set", "outer0", "up"]);
        inside(&["route", "add", "default", "via", &format!("{subnet}.1")]);
        // The return route; removed with the node's bridge.
        let back = [
            "route",
            "add",
            &format!("{subnet}.0/24"),
            "via",
            &pod.v4.to_string(),
        ];
        run("ip", &back).expect("a route back");
        inner
    }

    fn connect(&self, fixture: &RedirectFixture<'_>, target: &str) -> String {
        let netns = format!("/run/netns/{}", self.name);
        let process =
            fixture
                .pod
                .probe_with("app", 0, &["--inner-netns", &netns], &["connect", target]);
        fixture.describe(&process.remaining_events())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _best_effort = run("ip", &["netns", "del", &self.name]);
    }
}

#[test]
fn guard_counts_proxy_bypasses() {
    if !privileged("the guard, counting") {
        return;
    }
    let node = Node::start_with(Tier::Full, &["--guard", "count"]);
    let fixture = RedirectFixture::build(&node);
    let inner = Inner::build(&fixture.pod);
    let mut passed = 0;
    let mut check = |what: &str, more: u64| {
        passed += more;
        assert_eq!(seen(&node), (passed, 0), "{what}");
    };

    assert_eq!(fixture.app(&["connect", &fixture.peer4(PORT)]), VIA_PROXY);
    check("a redirected connection", 0);
    let own = fixture
        .pod
        .probe_as("linkerd-proxy", 2102, &["connect", &fixture.peer4(PORT)]);
    assert!(
        fixture
            .describe(&own.remaining_events())
            .starts_with("direct")
    );
    check("the proxy's own connection", 0);
    assert!(
        fixture
            .app(&["connect", &fixture.peer4(SKIPPED)])
            .starts_with("direct")
    );
    assert!(
        fixture
            .app(&["connect", "127.0.0.1:8001"])
            .starts_with("app")
    );
    check("a skipped port, and loopback", 0);

    assert_eq!(request(&fixture, "raw", &[PORT, SKIPPED]), [true, true]);
    check("a raw socket", 1);
    assert_eq!(request(&fixture, "packet", &[PORT, SKIPPED]), [true, true]);
    check("a packet socket", 1);
    let foreign = format!("{}:0", fixture.foreign);
    let args = [
        "connect",
        &fixture.peer4(PORT),
        "--transparent",
        "--bind",
        &foreign,
    ];
    assert!(fixture.app(&args).starts_with("direct from FOREIGN4"));
    check("a source address that is not the pod's (trap 11)", 1);
    let reached = inner.connect(&fixture, &fixture.peer4(PORT));
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
    if !privileged("the guard, dropping") {
        return;
    }
    // On the split tier, whose inbound half is a packet filter, and where connections are
    // redirected to loopback.
    for tier in [Tier::Full, Tier::Split] {
        let node = Node::start_with(tier, &["--guard", "drop"]);
        let empty = entries(&node);
        let fixture = RedirectFixture::build(&node);
        let dropped = |count: u64| assert_eq!(seen(&node), (0, count), "{tier}");
        assert_eq!(
            request(&fixture, "raw", &[PORT, SKIPPED]),
            [false, true],
            "{tier}"
        );
        dropped(1);
        assert_eq!(
            request(&fixture, "packet", &[PORT, PORT2, SKIPPED]),
            [false, false, true]
        );
        dropped(3);
        let inbound = fixture.peer_app(&["connect", &fixture.own4(super::fixture::APP)]);
        assert!(inbound.starts_with("proxy 4143"), "{inbound}");
        let outbound = fixture.app(&["connect", &fixture.peer4(PORT)]);
        assert!(outbound.starts_with("proxy 4140"), "{outbound}");
        dropped(3);

        // The guard survives a restart, and is removed immediately when disabled.
        node.restart_agent();
        assert_eq!(
            request(&fixture, "raw", &[PORT, SKIPPED]),
            [false, true],
            "{tier}"
        );
        dropped(4);
        node.restart_agent_with(&[]);
        assert_eq!(
            request(&fixture, "raw", &[PORT, SKIPPED]),
            [true, true],
            "{tier}"
        );
        let guards = |node: &Node| {
            let pins = node.pinned();
            let in_guard = |pin: &&std::path::PathBuf| pin.to_string_lossy().contains("/guard/");
            pins.iter().filter(in_guard).count()
        };
        assert_eq!(guards(&node), 0);

        // Enabled again, also for a running pod and an interface that the pod created.
        fixture
            .pod
            .run("ip", &["link", "add", "extra0", "type", "veth"])
            .expect("another interface, and its other end");
        node.restart_agent_with(&["--guard", "drop"]);
        assert_eq!(guards(&node), 3);
        assert_eq!(
            request(&fixture, "raw", &[PORT, SKIPPED]),
            [false, true],
            "{tier}"
        );
        drop(fixture);
        assert_eq!(guards(&node), 0);
        assert_eq!(entries(&node), empty);
    }
}

#[test]
fn guard_keeps_connections_from_before_enrolment() {
    if !privileged("the guard and older connections") {
        return;
    }
    let node = Node::start_with(Tier::Full, &["--guard", "drop"]);
    let (peer, pod) = (node.plain_pod("peer"), node.pod_before_enrolment("app"));
    let target = format!("{}:{PORT}", peer.v4);
    let options = ["--greet", "direct", "--hold"];
    let server = serve(&peer, "app", 0, &options, std::slice::from_ref(&target));
    let mut open = pod.app(&["connect", &target, "--stay"]);
    assert_eq!(open.next_event()["greeting"]["reached"], "direct");
    pod.enrol();
    // Its socket is older than the enrolment (trap 34), but its packets are not.
    open.proceed();
    assert_eq!(
        open.remaining_events(),
        [serde_json::json!({"finished": true})]
    );
    assert_eq!(seen(&node), (0, 0));
    drop(server);
}

#[test]
fn unavailable_guard_is_reported_in_status() {
    if !privileged("the guard on a tier without programs") {
        return;
    }
    let node = Node::start_with(Tier::Nft, &["--guard", "drop"]);
    let status = node.request(&Request::Status);
    let warnings = status["status"]["warnings"].to_string();
    assert!(
        warnings.contains("--guard drop is not in effect: tier nft has no kernel programs"),
        "{status}"
    );
}

#[test]
fn pod_address_changes_update_redirection() {
    if !privileged("a pod with a new address") {
        return;
    }
    let node = Node::start(Tier::Full);
    let fixture = RedirectFixture::build(&node);
    let (subnet, _) = fixture.pod.subnet();
    let new = format!("{subnet}.250");
    let prefix = format!("{new}/24");
    let connect = || {
        let source = format!("{new}:0");
        fixture.app(&["connect", &fixture.peer4(PORT), "--bind", &source])
    };
    let in_pod = |args: &[&str]| fixture.pod.run("ip", args).expect("ip in the pod");
    in_pod(&["addr", "add", &prefix, "dev", "eth0"]);
    let followed =
        format!("proxy 4140, original PEER4:7001 from {new}, app sees peer PEER4:7001 self {new}");
    wait_until(
        "connections from the new address are redirected",
        || connect() == followed,
        || node.agent_log(),
    );
    // Applications still use the pod's primary address.
    assert_eq!(fixture.app(&["connect", &fixture.peer4(PORT)]), VIA_PROXY);

    in_pod(&["addr", "del", &prefix, "dev", "eth0"]);
    let knows = || -> bool {
        let pods = node.request(&Request::Pods);
        let addresses = pods["pods"][0]["addresses"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let is_new = |address: &Value| {
            address
                .as_str()
                .and_then(|text| text.parse::<IpAddr>().ok())
                == new.parse().ok()
        };
        addresses.iter().any(is_new)
    };
    wait_until(
        "the agent removes the address",
        || !knows(),
        || node.agent_log(),
    );
}
