//! Very many concurrent connections.

use mesh_core::node::Tier;
use mesh_test_support::require_root;
use serde_json::json;

use super::fixture::PORT;
use super::lifecycle::entries;
use crate::harness::node::Node;

/// More than the default range of ephemeral ports has, so the pod widens it (trap 55).
const CONNECTIONS: u32 = 30_000;
const PORT_RANGE: &str = "10000 65535";
/// Client and server processes: the descriptor limit of one is below the number of connections.
const PROCESSES: u32 = 2;

#[test]
fn thirty_thousand_concurrent_connections_are_redirected() {
    require_root!();
    let node = Node::start(Tier::Full);
    let (peer, pod) = (node.plain_pod("peer"), node.meshed_pod("app", &[]));
    let widen = format!("echo {PORT_RANGE} > /proc/sys/net/ipv4/ip_local_port_range");
    pod.namespace.run(["sh", "-c", &widen]);
    // mesh-proxy listens in each thread; here processes of its container do.
    let proxies: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let proxy = pod.proxy("many-connections serve proxy 127.0.0.1:4140");
            assert_eq!(proxy.next_event()["listening"], "127.0.0.1:4140");
            proxy
        })
        .collect();
    let before = entries(&node);

    let target = format!("{}:{PORT}", peer.v4);
    let share = CONNECTIONS / PROCESSES;
    let mut clients: Vec<_> = (0..PROCESSES)
        .map(|_| pod.app(format!("many-connections connect {target} {share}")))
        .collect();
    let right = format!("proxy, original {target}");
    for client in &clients {
        let expected = json!({"held": share, "outcomes": {&right: share}});
        let last = std::iter::repeat_with(|| client.next_event())
            .find(|event| event.get("begun").is_none());
        assert_eq!(last, Some(expected));
    }
    // All are open and accepted, so that no original destination is in flight.
    assert_eq!(entries(&node), before);
    for client in &mut clients {
        client.write_line("");
    }
    for client in clients {
        assert!(client.remaining_events().is_empty());
    }
    assert_eq!(entries(&node), before);
    drop(proxies);
}
