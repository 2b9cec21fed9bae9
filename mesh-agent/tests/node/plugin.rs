//! The plugin in a chain with Debian's, with an agent that is there, one that was there, and none.

use std::{fs, net::SocketAddr};

use mesh_agent::redirect::Tier;
use serde_json::{Value, json};

use crate::{
    agent::Node,
    network::Netns,
    runtime::{Network, Pod, Said},
    skipped,
};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn assert_success(said: &Said) {
    assert!(said.is_success, "{said:?}");
}

fn assert_error(said: &Said, code: u32, text: &str) {
    assert!(!said.is_success, "{said:?}");
    assert_eq!(said.output["code"], code, "{said:?}");
    let all = format!("{} {}", said.output["msg"], said.output["details"]);
    assert!(all.contains(text), "{all}");
}

/// The pod's connections reach its proxy, as a packet filter redirects them.
fn assert_redirected(node: &Node, pod: &Netns) {
    let service: SocketAddr = "10.241.1.1:9000".parse().unwrap();
    node.host.serve("service", service);
    pod.serve("outbound", "127.0.0.1:4140".parse().unwrap());
    assert_eq!(pod.ask(service), format!("outbound {service}"));
}

#[test]
fn every_version_in_a_real_chain() {
    if skipped("every_version_in_a_real_chain") {
        return;
    }
    for version in VERSIONS {
        let node = Node::new();
        let agent = node.start(Tier::Nft);
        let network = Network::new(&node, version);
        let pod = Pod::meshed(&[("skip-outbound-ports", "25")]);

        let (previous, said) = network.add(&pod);
        assert_success(&said);
        assert_eq!(said.output, previous, "the result is passed on as it came");
        assert_eq!(said.output["cniVersion"], version);
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
            assert_success(&check);
        }
        let status = network.mesh_without_pod("STATUS", &[]);
        if version == "1.1.0" {
            assert_success(&status);
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
fn a_pod_that_does_not_ask_needs_nobody() {
    if skipped("a_pod_that_does_not_ask_needs_nobody") {
        return;
    }
    let node = Node::new();
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::plain();
    let (previous, said) = network.add(&pod);
    assert_eq!((said.is_success, &said.output), (true, &previous));
    assert_success(&network.mesh("CHECK", &pod, Some(&previous)));
    network.del(&pod, Some(&previous));
    assert!(!node.state_dir().exists(), "it touched nothing");
}

#[test]
fn an_excluded_namespace_needs_nobody() {
    if skipped("an_excluded_namespace_needs_nobody") {
        return;
    }
    let node = Node::new();
    let mut network = Network::new(&node, "1.0.0");
    network.change("excludeNamespaces", json!(["shop"]));
    assert_success(&network.add(&Pod::meshed(&[])).1);
}

#[test]
fn without_any_agent_ever_a_meshed_pod_is_refused() {
    if skipped("without_any_agent_ever_a_meshed_pod_is_refused") {
        return;
    }
    let node = Node::new();
    let network = Network::new(&node, "1.1.0");
    let pod = Pod::meshed(&[]);
    let (previous, said) = network.add(&pod);
    assert_error(
        &said,
        11,
        "no mesh agent has set up this node since it started",
    );
    assert_error(&said, 11, "the mesh agent does not listen on");
    let status = network.mesh_without_pod("STATUS", &[]);
    assert_error(&status, 50, "pods cannot be enrolled into the mesh");
    assert_success(&network.mesh_without_pod("GC", &[]));
    network.del(&pod, Some(&previous));
}

#[test]
fn what_cannot_be_understood_is_named() {
    if skipped("what_cannot_be_understood_is_named") {
        return;
    }
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[("skip-inbound-ports", "80,http")]);
    let (previous, said) = network.add(&pod);
    let message = format!(
        "the annotation config.linkerd.io/skip-inbound-ports: \\\"80,http\\\" of pod shop/{} is wrong",
        pod.id
    );
    assert_error(&said, 100, &message);
    assert_eq!(node.records(), Vec::<String>::new());
    network.del(&pod, Some(&previous));
    assert_error(
        &network.mesh("ADD", &pod, None),
        7,
        "there is no prevResult",
    );
    drop(agent);
}

#[test]
fn check_notices_tampering_and_a_restarted_agent_repairs_it() {
    if skipped("check_notices_tampering_and_a_restarted_agent_repairs_it") {
        return;
    }
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let (previous, said) = network.add(&pod);
    assert_success(&said);
    pod.netns.exec("nft flush ruleset");
    assert_error(
        &network.mesh("CHECK", &pod, Some(&previous)),
        101,
        "differs from what the pod needs: it is missing or empty",
    );
    drop(agent);
    let agent = node.start(Tier::Nft);
    assert!(agent.log.contains("repaired=1"), "{}", agent.log);
    assert_success(&network.mesh("CHECK", &pod, Some(&previous)));
    assert_redirected(&node, &pod.netns);
    network.del(&pod, Some(&previous));
}

/// The plugin goes on alone with what a killed agent left; the next agent finds its work.
fn goes_on_alone(tier: Tier) {
    let node = Node::new();
    let agent = match node.try_start(tier) {
        Ok(agent) => agent,
        Err(log) => {
            println!("skipped: tier {tier} does not work on this machine: {log}");
            return;
        }
    };
    let network = Network::new(&node, "1.1.0");
    let before = Pod::meshed(&[]);
    let (before_result, said) = network.add(&before);
    assert_success(&said);
    agent.kill();

    let alone = Pod::meshed(&[("skip-inbound-ports", "80-90")]);
    let (alone_result, said) = network.add(&alone);
    assert_success(&said);
    assert_success(&network.mesh("CHECK", &alone, Some(&alone_result)));
    assert_success(&network.mesh("CHECK", &before, Some(&before_result)));
    assert_success(&network.mesh_without_pod("STATUS", &[]));
    let mut expected = vec![format!("{}.json", before.id), format!("{}.json", alone.id)];
    expected.sort();
    assert_eq!(node.records(), expected);
    network.del(&before, Some(&before_result));

    let agent = node.start(tier);
    assert!(
        agent.log.contains("intact=1 repaired=0 gone=0"),
        "{}",
        agent.log
    );
    let pods = agent.pods();
    assert_eq!(pods.len(), 1);
    assert_eq!((&pods[0].container_id, pods[0].tier), (&alone.id, tier));
    network.del(&alone, Some(&alone_result));
    assert_eq!(node.records(), Vec::<String>::new());
    if tier.uses_ebpf() {
        node.assert_no_pod_in_the_kernel();
    }
    agent.kill();
    assert!(node.uninstall());
    assert!(!node.state_dir().exists() && !node.pin_dir.exists());
}

#[test]
fn the_plugin_goes_on_alone_with_nft() {
    if !skipped("the_plugin_goes_on_alone_with_nft") {
        goes_on_alone(Tier::Nft);
    }
}

#[test]
fn the_plugin_goes_on_alone_with_iptables() {
    if !skipped("the_plugin_goes_on_alone_with_iptables") {
        goes_on_alone(Tier::Iptables);
    }
}

#[test]
fn the_plugin_goes_on_alone_with_ebpf() {
    if !skipped("the_plugin_goes_on_alone_with_ebpf") {
        goes_on_alone(Tier::Full);
    }
}

#[test]
fn the_plugin_goes_on_alone_with_ebpf_and_nft() {
    if !skipped("the_plugin_goes_on_alone_with_ebpf_and_nft") {
        goes_on_alone(Tier::Split);
    }
}

#[test]
fn a_deletion_that_nobody_could_do_is_done_by_the_next_agent() {
    if skipped("a_deletion_that_nobody_could_do_is_done_by_the_next_agent") {
        return;
    }
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let (previous, said) = network.add(&pod);
    assert_success(&said);
    agent.kill();
    // Without it the plugin does not know what the node's agent did.
    fs::remove_file(node.state_dir().join("node.json")).unwrap();
    network.del(&pod, Some(&previous));
    assert_eq!(
        node.records(),
        [format!("{}.json", pod.id), format!("{}@eth0.json", pod.id)]
    );
    let agent = node.start(Tier::Nft);
    assert_eq!(node.records(), Vec::<String>::new());
    assert!(agent.pods().is_empty());
    assert!(pod.netns.exec("nft list ruleset").is_empty());
}

#[test]
fn garbage_collection_keeps_exactly_what_is_valid() {
    if skipped("garbage_collection_keeps_exactly_what_is_valid") {
        return;
    }
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.1.0");
    let (kept, dead) = (Pod::meshed(&[]), Pod::meshed(&[]));
    let (kept_result, said) = network.add(&kept);
    assert_success(&said);
    assert_success(&network.add(&dead).1);
    assert_success(&network.mesh_without_pod("GC", &[&kept]));
    assert_eq!(node.records(), [format!("{}.json", kept.id)]);
    assert!(dead.netns.exec("nft list ruleset").is_empty());

    agent.kill();
    assert_success(&network.mesh_without_pod("GC", &[&kept]));
    assert_success(&network.mesh("CHECK", &kept, Some(&kept_result)));
    assert_success(&network.mesh_without_pod("GC", &[]));
    assert_eq!(node.records(), Vec::<String>::new());
}

#[test]
fn a_pod_that_died_silently_is_forgotten() {
    if skipped("a_pod_that_died_silently_is_forgotten") {
        return;
    }
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    assert_success(&network.add(&Pod::meshed(&[])).1);
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
fn a_pod_keeps_its_tier_when_the_nodes_changes() {
    if skipped("a_pod_keeps_its_tier_when_the_nodes_changes") {
        return;
    }
    let node = Node::new();
    let network = Network::new(&node, "1.0.0");
    let old = Pod::meshed(&[]);
    let agent = node.start(Tier::Iptables);
    let (old_result, said) = network.add(&old);
    assert_success(&said);
    assert!(agent.terminate());
    let agent = node.start(Tier::Nft);
    let (_, said) = network.add(&Pod::meshed(&[]));
    assert_success(&said);
    // Even when the runtime asks for it again.
    assert_success(&network.mesh("ADD", &old, Some(&old_result)));
    let mut tiers: Vec<Tier> = agent.pods().iter().map(|pod| pod.tier).collect();
    tiers.sort();
    assert_eq!(tiers, [Tier::Nft, Tier::Iptables]);
    let status = agent.status();
    assert_eq!((status.tier, status.forced), (Tier::Nft, true));
    assert_eq!(status.pods.values().sum::<usize>(), 2);
}

#[test]
fn the_version_is_told_to_runtimes_of_any_age() {
    let ask = |input: &str| {
        let mut output = Vec::new();
        let variable = |name: &str| (name == "CNI_COMMAND").then(|| "VERSION".to_owned());
        mesh_agent::cni::run(&variable, &mut input.as_bytes(), &mut output).unwrap();
        serde_json::from_slice::<Value>(&output).unwrap()
    };
    assert_eq!(
        ask("{\"cniVersion\":\"0.4.0\"}"),
        json!({"cniVersion": "0.4.0", "supportedVersions": VERSIONS})
    );
    assert_eq!(ask("")["cniVersion"], "1.1.0");
}
