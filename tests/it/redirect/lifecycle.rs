//! Starts, stops and restarts of pods, proxies and agents.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use mesh_core::node::Tier;
use mesh_test_support::command::try_run;
use mesh_test_support::eventually::{TIMEOUT, eventually};
use mesh_test_support::require_root;
use serde_json::{Value, json};

use super::fixture::{APP, PORT, RedirectFixture};
use crate::harness::node::{APPLICATION, Node, PROXY};

const VIA_PROXY: &str =
    "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4";
const INBOUND: &str =
    "proxy 4143, original OWN4:8001 from PEER4, app sees peer OWN4:8001 self PEER4";

/// Returns the number of entries of each keyed map of the agent.
pub(super) fn entries(node: &Node) -> Vec<(String, usize)> {
    let mut counted = Vec::new();
    for pin in node.pinned() {
        let path = pin.display().to_string();
        let Ok(shown) = try_run(format!("bpftool -j map show pinned {path}")) else {
            continue; // a program or a link
        };
        let shown: Value = serde_json::from_str(&shown).expect("bpftool prints JSON");
        let keyed = ["hash", "lpm_trie", "sockhash", "percpu_hash", "lru_hash"];
        if !keyed.contains(&shown["type"].as_str().unwrap_or_default()) {
            continue;
        }
        // Has an entry per pod from its first connection on.
        if shown["name"] == "IN_FLIGHT_COUNT" {
            continue;
        }
        // The dump of a sockhash has its keys and an error for each value, since sockets cannot be
        // printed.
        let dump = try_run(format!("bpftool -j map dump pinned {path}")).unwrap_or_default();
        let dump: Value = serde_json::from_str(&dump).unwrap_or_default();
        let count = dump.as_array().map_or(0, Vec::len);
        counted.push((shown["name"].as_str().unwrap_or("?").to_owned(), count));
    }
    assert!(
        !counted.is_empty(),
        "no map is pinned below {}",
        node.pins().display()
    );
    counted
}

#[test]
fn closed_connections_leave_no_map_entries() {
    require_root!();
    let node = Node::start(Tier::Full);
    let fixture = RedirectFixture::build(&node);
    let before = entries(&node);
    // Four processes. Some exit earlier, so that ports are reused.
    let args = ["churn", &fixture.peer4(PORT), "6000"];
    let churns: Vec<_> = (0..4).map(|_| fixture.pod.app(args)).collect();
    for churn in churns {
        let outcome = &churn.remaining_events()[0];
        assert_eq!(outcome["connections"], 6000, "{outcome}");
        assert_eq!(outcome["failed"], 0, "{outcome}");
    }
    assert_eq!(entries(&node), before);
}

#[test]
fn pods_are_enrolled_while_agent_is_dead() {
    require_root!();
    let node = Node::start(Tier::Full);
    node.kill_agent();
    // Both pods start while the agent is dead: the plugin enrols them with the pinned maps.
    let fixture = RedirectFixture::build(&node);
    assert_eq!(fixture.connect(""), VIA_PROXY);
    assert_eq!(fixture.arrive(APP), INBOUND);
}

#[test]
fn restarted_agent_adopts_its_pods() {
    require_root!();
    let node = Node::start(Tier::Full);
    let fixture = RedirectFixture::build(&node);
    let pins = node.pinned();
    let probe = ["connect", &fixture.peer4(PORT), "--stay"];
    let mut held = fixture.pod.app(probe);
    held.next_event();
    node.restart_agent();
    let pods = node.request(&mesh_core::node::Request::Pods);
    assert_eq!(pods["pods"].as_array().map(Vec::len), Some(1), "{pods}");
    assert_eq!(pods["pods"][0]["pod"]["name"], "app", "{pods}");
    assert_eq!(node.pinned(), pins, "a restart replaces nothing");
    assert_eq!(fixture.connect(""), VIA_PROXY);
    assert_eq!(fixture.arrive(APP), INBOUND);
    held.write_line("");
}

#[test]
fn deleted_pod_leaves_no_pins_or_map_entries() {
    require_root!();
    let node = Node::start(Tier::Full);
    let (pins, empty) = (node.pinned(), entries(&node));
    assert!(empty.iter().all(|(_, count)| *count == 0), "{empty:?}");
    let fixture = RedirectFixture::build(&node);
    assert_eq!(fixture.connect(""), VIA_PROXY);
    assert!(
        node.pinned().len() > pins.len(),
        "an enrolled pod has a link of its own"
    );
    drop(fixture);
    assert_eq!(node.pinned(), pins);
    assert_eq!(entries(&node), empty);
}

#[test]
fn running_pod_can_be_enrolled() {
    require_root!();
    let node = Node::start(Tier::Full);
    let (peer, pod) = (node.plain_pod("peer"), node.pod_before_enrolment("app"));
    let target = format!("{}:{PORT}", peer.v4);
    let server = peer.serve(APPLICATION, "--greet direct --hold", &target);
    // Older than the enrolment (trap 28): the agent must find its listeners.
    let proxy = pod.serve(PROXY, "--greet proxy", "127.0.0.1:4140 0.0.0.0:4143");
    let mut open = pod.app(["connect", &target, "--stay"]);
    assert_eq!(open.next_event()["greeting"]["reached"], "direct");
    let mut waiting = pod.app(["connect", &target, "--wait-stdin"]);
    assert_eq!(waiting.next_event()["ready"], true);
    pod.enrol();
    // The socket is older than the enrolment, its connection is not (trap 34).
    waiting.write_line("");
    assert_eq!(waiting.next_event()["greeting"]["reached"], "proxy");
    let arriving = peer.app(format!("connect {}:{APP}", pod.v4)).next_event();
    assert_eq!(arriving["greeting"]["reached"], "proxy", "{arriving}");
    assert_eq!(
        arriving["greeting"]["original"],
        format!("{}:{APP}", pod.v4)
    );
    // A connection opened before stays usable and closes without an error.
    open.write_line("");
    assert_eq!(open.remaining_events(), [json!({"finished": true})]);
    drop((proxy, server));
}

#[test]
fn host_network_pod_is_not_enrolled() {
    require_root!();
    let node = Node::start(Tier::Full);
    let pod = node.pod_before_enrolment("app");
    // A pod with hostNetwork (trap 35): enrolling it would enrol every process of the node.
    let answer = pod.enrol_elsewhere(Path::new("/proc/self/ns/net"));
    assert!(answer.is_ok(), "such a pod must start: {answer:?}");
    let pods = node.request(&mesh_core::node::Request::Pods);
    assert_eq!(pods["pods"].as_array().map(Vec::len), Some(0), "{pods}");
    assert!(entries(&node).iter().all(|(_, count)| *count == 0));
}

/// Returns the scratch cgroups of self-tests and the number of processes in them.
fn scratch(node: &Node) -> (Vec<PathBuf>, usize) {
    let list = |directory: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let found: Vec<PathBuf> = list(node.cgroup())
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("mesh-selftest-"))
        .collect();
    let processes = found
        .iter()
        .flat_map(|path| list(path))
        .filter_map(|path| std::fs::read_to_string(path.join("cgroup.procs")).ok())
        .map(|procs| procs.lines().count())
        .sum();
    (found, processes)
}

#[test]
fn agent_killed_during_self_test_leaves_no_remains() {
    require_root!();
    let node = Node::start(Tier::Full);
    let pins = node.pins();
    let name = pins.file_name().expect("the pins have a name");
    let scratch_pins = pins.with_file_name(format!("{}-selftest", name.to_string_lossy()));
    // Both workers run for about 5 ms: a pause between two looks could miss them, and a kill can
    // come too late all the same. The agent's socket responds only after the self-test.
    let kill_in_self_test = || {
        eventually("an agent is killed during its self-test", || {
            node.kill_agent();
            node.spawn_agent();
            let start = Instant::now();
            while scratch(&node).1 < 2 && !node.agent_has_logged("Redirection tier chosen") {
                assert!(start.elapsed() < TIMEOUT, "{}", node.agent_log());
                thread::yield_now();
            }
            node.kill_agent();
            eventually("the workers end with their agent", || scratch(&node).1 == 0);
            scratch_pins.exists()
        });
        assert_eq!(scratch(&node).0.len(), 1);
    };
    kill_in_self_test();
    node.start_agent();
    assert_eq!(scratch(&node).0, Vec::<PathBuf>::new());
    assert!(!scratch_pins.exists());

    kill_in_self_test();
    let uninstall = node.uninstall().expect("the agent runs");
    assert!(uninstall.status.success(), "{uninstall:?}");
    assert_eq!(scratch(&node).0, Vec::<PathBuf>::new());
    assert!(!scratch_pins.exists() && !pins.exists());
}
