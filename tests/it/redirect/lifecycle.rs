//! Pods, proxies and agents that come and go.

use mesh_core::node::Tier;
use serde_json::Value;

use super::stage::{APP, PORT, Stage};
use crate::harness::{node::Node, privileged, process::run};

const VIA_PROXY: &str =
    "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4";
const INBOUND: &str =
    "proxy 4143, original OWN4:8001 from PEER4, app sees peer OWN4:8001 self PEER4";

/// How many entries each of the agent's keyed maps holds.
fn entries(node: &Node) -> Vec<(String, usize)> {
    let mut counted = Vec::new();
    for pin in node.pinned() {
        let path = pin.display().to_string();
        let Ok(shown) = run("bpftool", &["-j", "map", "show", "pinned", &path]) else {
            continue; // a program or a link
        };
        let shown: Value = serde_json::from_str(&shown).expect("bpftool speaks JSON");
        let keyed = ["hash", "lpm_trie", "sockhash", "percpu_hash", "lru_hash"];
        if !keyed.contains(&shown["type"].as_str().unwrap_or_default()) {
            continue;
        }
        // A sockhash shows its keys and an error for each value: sockets cannot be printed.
        let dump = run("bpftool", &["-j", "map", "dump", "pinned", &path]).unwrap_or_default();
        let dump: Value = serde_json::from_str(&dump).unwrap_or_default();
        let count = dump.as_array().map_or(0, Vec::len);
        counted.push((shown["name"].as_str().unwrap_or("?").to_owned(), count));
    }
    assert!(
        !counted.is_empty(),
        "no map is pinned below {}",
        node.pins.display()
    );
    counted
}

#[test]
fn connections_leave_no_entry_behind() {
    if !privileged("24,000 connections") {
        return;
    }
    let node = Node::start(Tier::Full);
    let stage = Stage::build(&node);
    let before = entries(&node);
    // In four processes: half of them end before the other half, so that ports are used again.
    let args = ["churn", &stage.peer4(PORT), "6000"];
    let churns: Vec<_> = (0..4).map(|_| stage.pod.app(&args)).collect();
    for churn in churns {
        let outcome = &churn.rest()[0];
        assert_eq!(outcome["connections"], 6000, "{outcome}");
        assert_eq!(outcome["failed"], 0, "{outcome}");
    }
    assert_eq!(entries(&node), before);
}

#[test]
fn agent_killed_and_back() {
    if !privileged("an agent that dies") {
        return;
    }
    let node = Node::start(Tier::Full);
    node.kill_agent();
    // Both pods of the stage start while the agent is dead: the plugin enrols from the pinned programs.
    let stage = Stage::build(&node);
    assert_eq!(stage.app(&["connect", &stage.peer4(PORT)]), VIA_PROXY);
    assert_eq!(stage.peer_app(&["connect", &stage.own4(APP)]), INBOUND);
}

#[test]
fn restarted_agent_adopts_its_pods() {
    if !privileged("an agent that is started again") {
        return;
    }
    let node = Node::start(Tier::Full);
    let stage = Stage::build(&node);
    let pins = node.pinned();
    let mut held = stage.pod.app(&["connect", &stage.peer4(PORT), "--stay"]);
    held.event();
    node.restart_agent();
    let pods = node.ask(&mesh_core::node::Request::Pods);
    assert_eq!(pods["pods"].as_array().map(Vec::len), Some(1), "{pods}");
    assert_eq!(pods["pods"][0]["pod"]["name"], "app", "{pods}");
    assert_eq!(node.pinned(), pins, "a restart replaces nothing");
    assert_eq!(stage.app(&["connect", &stage.peer4(PORT)]), VIA_PROXY);
    assert_eq!(stage.peer_app(&["connect", &stage.own4(APP)]), INBOUND);
    held.proceed();
}

#[test]
fn last_pod_takes_everything_with_it() {
    if !privileged("pods that are deleted") {
        return;
    }
    let node = Node::start(Tier::Full);
    let (pins, empty) = (node.pinned(), entries(&node));
    assert!(empty.iter().all(|(_, count)| *count == 0), "{empty:?}");
    let stage = Stage::build(&node);
    assert_eq!(stage.app(&["connect", &stage.peer4(PORT)]), VIA_PROXY);
    assert!(
        node.pinned().len() > pins.len(),
        "an enrolled pod has a link of its own"
    );
    drop(stage);
    assert_eq!(node.pinned(), pins);
    assert_eq!(entries(&node), empty);
}
