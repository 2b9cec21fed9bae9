//! `mesh-agent dial` from a pod of a packet-filter tier. The tests of the eBPF tiers are in
//! `tests/privileged/dial.rs`.

use mesh_agent::redirect::Tier;
use mesh_test_support::require_root;

use crate::agent::Node;
use crate::network::serve;
use crate::runtime::{Network, Pod};

#[test]
fn dialled_connection_of_an_nft_pod_reaches_its_proxy() {
    require_root!();
    let node = Node::new();
    let _agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let previous = network.add_enrolled(&pod);
    serve(&pod.netns, "proxy", "0.0.0.0:4140");
    let target = "10.241.1.1:80";
    let name = format!("shop/{}", pod.id);
    let dial = node.start_command(&["dial", "--pod", &name, target]);
    let (status, output) = dial.finish();
    assert!(status.success(), "{output}");
    let (connected, received) = output.split_once('\n').unwrap();
    let start = "{\"connected\":{\"local\":\"10.241.1.";
    assert!(connected.starts_with(start), "{connected}");
    assert_eq!(received, format!("proxy {target}\n"));
    network.del(&pod, Some(&previous));
}
