//! The plugin in a chain with Debian's, with a running agent, a killed one, and none.

use std::fs;

use mesh_agent::redirect::Tier;
use mesh_test_support::network::Namespace;
use mesh_test_support::require_root;
use serde_json::{Value, json};

use crate::agent::Node;
use crate::network::{request, serve};
use crate::runtime::{Network, PluginResult, Pod};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn assert_error(result: &PluginResult, code: u32, text: &str) {
    let error = result.as_ref().unwrap_err();
    assert_eq!(error["code"], code, "{error}");
    let all = format!("{} {}", error["msg"], error["details"]);
    assert!(all.contains(text), "{all}");
}

/// Asserts that a packet filter redirects the pod's connections to its proxy.
fn assert_redirected(node: &Node, pod: &Namespace) {
    let service = "10.241.1.1:9000";
    serve(&node.host, "service", service);
    serve(pod, "outbound", "127.0.0.1:4140");
    let reached = request(pod, service.parse().unwrap());
    assert_eq!(reached, format!("outbound {service}"));
}

#[test]
fn every_cni_version_works_in_a_real_chain() {
    require_root!();
    for version in VERSIONS {
        let node = Node::new();
        let agent = node.start(Tier::Nft);
        let network = Network::new(&node, version);
        let pod = Pod::meshed(&[("skip-outbound-ports", "25")]);

        let (previous, result) = network.add(&pod);
        assert_eq!(previous["cniVersion"], version);
        assert_eq!(result, Ok(previous.clone()), "passed on unchanged");
        assert_redirected(&node, &pod.netns);
        let pods = agent.pods();
        assert_eq!(pods.len(), 1);
        assert_eq!((pods[0].tier, &pods[0].container_id), (Tier::Nft, &pod.id));
        assert_eq!(pods[0].pod.to_string(), format!("shop/{}", pod.id));
        assert_eq!(pods[0].addresses.len(), 2, "{pods:?}");

        let check = network.mesh("CHECK", &pod, Some(&previous));
        if version.starts_with("0.3.") {
            assert_error(&check, 1, "has no command CHECK");
        } else {
            check.unwrap();
        }
        let status = network.mesh_without_pod("STATUS", &[]);
        if version == "1.1.0" {
            status.unwrap();
        } else {
            assert_error(&status, 1, "has no command STATUS");
        }

        network.del(&pod, Some(&previous));
        network.del(&pod, Some(&previous));
        network.del(&pod, None);
        assert_eq!(node.records(), Vec::<String>::new());
        assert!(agent.pods().is_empty());
        assert!(agent.terminate());
    }
}

#[test]
fn pod_outside_the_mesh_starts_without_agent() {
    require_root!();
    let node = Node::new();
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::plain();
    let (previous, result) = network.add(&pod);
    assert_eq!(result, Ok(previous.clone()));
    network.mesh("CHECK", &pod, Some(&previous)).unwrap();
    network.del(&pod, Some(&previous));
    assert!(!node.state_dir().exists(), "the plugin wrote no state");
}

#[test]
fn pod_in_excluded_namespace_starts_without_agent() {
    require_root!();
    let node = Node::new();
    let mut network = Network::new(&node, "1.0.0");
    network.change("excludeNamespaces", json!(["shop"]));
    network.add_enrolled(&Pod::meshed(&[]));
}

#[test]
fn meshed_pod_is_refused_on_node_without_agent() {
    require_root!();
    let node = Node::new();
    let network = Network::new(&node, "1.1.0");
    let pod = Pod::meshed(&[]);
    let (previous, result) = network.add(&pod);
    assert_error(
        &result,
        11,
        "no mesh agent has set up this node since it booted",
    );
    assert_error(&result, 11, "the mesh agent does not listen on");
    let status = network.mesh_without_pod("STATUS", &[]);
    assert_error(&status, 50, "pods cannot be enrolled into the mesh");
    network.mesh_without_pod("GC", &[]).unwrap();
    network.del(&pod, Some(&previous));
}

#[test]
fn invalid_annotation_is_named_in_refusal() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[("skip-inbound-ports", "80,http")]);
    let (previous, result) = network.add(&pod);
    let message = format!(
        "invalid annotation config.linkerd.io/skip-inbound-ports: \\\"80,http\\\" of pod shop/{}: ",
        pod.id
    );
    assert_error(&result, 100, &message);
    assert_eq!(node.records(), Vec::<String>::new());
    network.del(&pod, Some(&previous));
    assert_error(&network.mesh("ADD", &pod, None), 7, "prevResult is missing");
    drop(agent);
}

#[test]
fn check_detects_foreign_changes_and_restarted_agent_repairs_them() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let previous = network.add_enrolled(&pod);
    pod.netns.run("nft flush ruleset");
    assert_error(
        &network.mesh("CHECK", &pod, Some(&previous)),
        101,
        "differs from the pod's rules: it is missing or empty",
    );
    drop(agent);
    let agent = node.start(Tier::Nft);
    assert!(agent.log.contains("repaired=1"), "{}", agent.log);
    network.mesh("CHECK", &pod, Some(&previous)).unwrap();
    assert_redirected(&node, &pod.netns);
    network.del(&pod, Some(&previous));
}

/// The plugin enrols pods with the state of a killed agent; the next agent adopts them.
fn check_without_agent(tier: Tier) {
    require_root!();
    let node = Node::new();
    let Some(agent) = node.start_if_possible(tier) else {
        return;
    };
    let network = Network::new(&node, "1.1.0");
    let first = Pod::meshed(&[]);
    let first_result = network.add_enrolled(&first);
    agent.kill();

    let second = Pod::meshed(&[("skip-inbound-ports", "80-90")]);
    let second_result = network.add_enrolled(&second);
    network
        .mesh("CHECK", &second, Some(&second_result))
        .unwrap();
    network.mesh("CHECK", &first, Some(&first_result)).unwrap();
    network.mesh_without_pod("STATUS", &[]).unwrap();
    let mut expected = vec![format!("{}.json", first.id), format!("{}.json", second.id)];
    expected.sort();
    assert_eq!(node.records(), expected);
    network.del(&first, Some(&first_result));

    let agent = node.start(tier);
    assert!(
        agent.log.contains("intact=1 repaired=0 gone=0"),
        "{}",
        agent.log
    );
    let pods = agent.pods();
    assert_eq!(pods.len(), 1);
    assert_eq!((&pods[0].container_id, pods[0].tier), (&second.id, tier));
    network.del(&second, Some(&second_result));
    assert_eq!(node.records(), Vec::<String>::new());
    if tier.uses_ebpf() {
        node.assert_no_pod_in_the_kernel();
    }
    agent.kill();
    assert!(node.uninstall());
    assert!(!node.state_dir().exists() && !node.pin_dir().exists());
}

#[test]
fn cni_add_works_without_agent_nft() {
    check_without_agent(Tier::Nft);
}

#[test]
fn cni_add_works_without_agent_iptables() {
    check_without_agent(Tier::Iptables);
}

#[test]
fn cni_add_works_without_agent_ebpf() {
    check_without_agent(Tier::Full);
}

#[test]
fn cni_add_works_without_agent_ebpf_and_nft() {
    check_without_agent(Tier::Split);
}

#[test]
fn next_agent_completes_deletion_of_plugin() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let previous = network.add_enrolled(&pod);
    agent.kill();
    // Without it the plugin does not know the node's tier.
    fs::remove_file(node.state_dir().join("node.json")).unwrap();
    network.del(&pod, Some(&previous));
    assert_eq!(
        node.records(),
        [format!("{}.json", pod.id), format!("{}@eth0.json", pod.id)]
    );
    let agent = node.start(Tier::Nft);
    assert_eq!(node.records(), Vec::<String>::new());
    assert!(agent.pods().is_empty());
    assert!(pod.netns.run("nft list ruleset").is_empty());
}

#[test]
fn garbage_collection_keeps_valid_attachments() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.1.0");
    let (kept, dead) = (Pod::meshed(&[]), Pod::meshed(&[]));
    let kept_result = network.add_enrolled(&kept);
    network.add_enrolled(&dead);
    network.mesh_without_pod("GC", &[&kept]).unwrap();
    assert_eq!(node.records(), [format!("{}.json", kept.id)]);
    assert!(dead.netns.run("nft list ruleset").is_empty());

    agent.kill();
    network.mesh_without_pod("GC", &[&kept]).unwrap();
    network.mesh("CHECK", &kept, Some(&kept_result)).unwrap();
    network.mesh_without_pod("GC", &[]).unwrap();
    assert_eq!(node.records(), Vec::<String>::new());
}

#[test]
fn pod_that_ended_without_del_is_removed() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    network.add_enrolled(&Pod::meshed(&[]));
    agent.kill();
    assert_eq!(node.records().len(), 1);
    let agent = node.start(Tier::Nft);
    assert!(
        agent.log.contains("intact=0 repaired=0 gone=1"),
        "{}",
        agent.log
    );
    assert_eq!(node.records(), Vec::<String>::new());
}

#[test]
fn pod_keeps_its_tier_when_the_node_tier_changes() {
    require_root!();
    let node = Node::new();
    let network = Network::new(&node, "1.0.0");
    let old = Pod::meshed(&[]);
    let agent = node.start(Tier::Iptables);
    let old_result = network.add_enrolled(&old);
    assert!(agent.terminate());
    let agent = node.start(Tier::Nft);
    network.add_enrolled(&Pod::meshed(&[]));
    // Even when the runtime requests it again.
    network.mesh("ADD", &old, Some(&old_result)).unwrap();
    let mut tiers: Vec<Tier> = agent.pods().iter().map(|pod| pod.tier).collect();
    tiers.sort();
    assert_eq!(tiers, [Tier::Nft, Tier::Iptables]);
    let status = agent.status();
    assert_eq!((status.tier, status.forced), (Tier::Nft, true));
    assert_eq!(status.pods.values().sum::<usize>(), 2);
}

#[test]
fn version_command_accepts_any_cni_version() {
    let request = |input: &str| {
        let mut output = Vec::new();
        let variable = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
        mesh_agent::cni::run(&variable, &mut input.as_bytes(), &mut output).unwrap();
        serde_json::from_slice::<Value>(&output).unwrap()
    };
    assert_eq!(
        request("{\"cniVersion\":\"0.4.0\"}"),
        json!({"cniVersion": "0.4.0", "supportedVersions": VERSIONS})
    );
    assert_eq!(request("")["cniVersion"], "1.1.0");
}
