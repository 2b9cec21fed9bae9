//! The agent itself: the tier it chooses and reports, its metrics, its repairs, and how it behaves
//! towards other processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mesh_agent::ebpf::Programs;
use mesh_agent::node::Node as Redirections;
use mesh_agent::redirect::Tier;
use mesh_core::node::{Repair, RepairKind, SelfTestOutcome};
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::agent::{Agent, Node};
use crate::runtime::{Network, Pod};

#[test]
fn chosen_tier_and_its_reason_are_reported() {
    require_root!();
    let node = Node::new();
    let agent = node.start_with(&["--tier", "auto"]).unwrap();
    let status = agent.status();
    assert!(!status.forced);
    let (last, worse) = status.trials.split_last().unwrap();
    assert!(last.works && last.tier == status.tier);
    assert!(
        worse
            .iter()
            .all(|trial| !trial.works && !trial.reason.is_empty())
    );
    let metrics = agent.metrics(&node);
    let expected = format!("mesh_agent_tier_info{{tier=\"{}\",reason=\"", status.tier);
    assert!(metrics.contains(&expected), "{metrics}");
    if status.tier != Tier::Full {
        println!(
            "skipped: the rest of this test: tier full does not work here: {}",
            status.reason
        );
        return;
    }
    assert_eq!(
        status.reason,
        "it is the best tier, and passed the self-test"
    );
    assert_eq!(status.programs.len(), 9, "{:?}", status.programs);
    assert!(status.self_test.len() > 10);
    for case in &status.self_test {
        assert_ne!(case.outcome, SelfTestOutcome::Failed, "{case:?}");
    }
    assert!(
        metrics.contains("mesh_agent_self_test{check=\"IPv4\"} 1"),
        "{metrics}"
    );
}

#[test]
fn nft_tier_is_chosen_without_programs_or_cgroup2() {
    require_root!();
    let check =
        |arguments: &[&str], reason: &str| {
            let node = Node::new();
            let agent = node.start_with(arguments).unwrap();
            let status = agent.status();
            assert_eq!(status.tier, Tier::Nft);
            let expected = format!("it is the best tier that works; full and split: {reason}");
            assert!(status.reason.starts_with(&expected), "{}", status.reason);
            assert!(
                agent.log.contains("Tier does not work here"),
                "{}",
                agent.log
            );
            let metrics = agent.metrics(&node);
            assert!(metrics.contains(
                "mesh_agent_tier_info{tier=\"nft\",reason=\"it is the best tier that works"
            ));
        };
    check(
        &["--bpf-object", "/nonexistent/mesh-ebpf.o"],
        "cannot read the kernel programs from /nonexistent/mesh-ebpf.o: No such file",
    );
    check(
        &["--bpf-object", "/proc/self/cmdline"],
        "cannot read the kernel programs' object file",
    );
    check(
        &["--cgroup-root", "/tmp"],
        "/tmp is not a directory of cgroup version 2; name the parent of the node's pods with --cgroup-root",
    );
}

#[test]
fn unavailable_forced_tier_is_an_error() {
    require_root!();
    let node = Node::new();
    let Err(log) = node.start_with(&["--tier", "full", "--cgroup-root", "/tmp"]) else {
        panic!("the agent started");
    };
    assert!(
        log.contains(
            "required tier full is unavailable: /tmp is not a directory of cgroup version 2"
        ),
        "{log}"
    );
}

#[test]
fn second_agent_on_a_node_does_not_start() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let Err(log) = node.try_start(Tier::Nft) else {
        panic!("a second agent started");
    };
    assert!(log.contains("another mesh agent listens on"), "{log}");
    assert!(!node.uninstall(), "the running agent would undo it");
    let mode = fs::metadata(node.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mode = fs::metadata(node.state_dir()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    agent.kill();
    // The agent replaces the socket of a killed one.
    let agent = node.start(Tier::Nft);
    assert!(agent.terminate());
    assert!(!node.socket().exists());
}

#[test]
fn pods_start_while_agent_hangs() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let mut network = Network::new(&node, "1.0.0");
    network.change("timeoutSeconds", json!(1));
    agent.signal(Signal::SIGSTOP);
    let pod = Pod::meshed(&[]);
    let previous = network.add_enrolled(&pod);
    assert_eq!(node.records().len(), 1);
    // The agent finds the pending request; enrolling again is idempotent.
    agent.signal(Signal::SIGCONT);
    assert_eq!(agent.pods().len(), 1);
    network.mesh("CHECK", &pod, Some(&previous)).unwrap();
    network.del(&pod, Some(&previous));
    assert!(agent.pods().is_empty());
}

#[test]
fn removed_redirection_is_repaired() {
    require_root!();
    let node = Node::new();
    let Some(agent) = node.start_if_possible(Tier::Split) else {
        return;
    };
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let previous = network.add_enrolled(&pod);
    agent.kill();

    let redirections = Redirections::open_offline(&node.state_dir(), &node.pin_dir()).unwrap();
    let reconcile = || {
        let report = redirections.reconcile(false).unwrap();
        assert_eq!(report.failures, Vec::<String>::new());
        let damage: Vec<String> = report
            .repaired
            .into_iter()
            .map(|(_, damage)| damage)
            .collect();
        (report.intact, damage)
    };
    assert_eq!(reconcile(), (1, vec![]));
    pod.netns.run("nft delete table inet mesh_redirect");
    let damage = reconcile().1.concat();
    assert!(damage.contains("is missing or empty"), "{damage}");
    assert_eq!(reconcile(), (1, vec![]));

    let programs = Programs::open(&node.pin_dir()).unwrap();
    let cookie = programs.pods().unwrap()[0].cookie;
    assert!(programs.unenrol(cookie).unwrap());
    let damage = reconcile().1.concat();
    assert!(damage.contains("have no entry for the pod"), "{damage}");
    assert_eq!(reconcile(), (1, vec![]));
    network.del(&pod, Some(&previous));
    node.assert_no_pod_in_the_kernel();
}

#[test]
fn damaged_kernel_programs_are_repaired_and_the_repair_is_reported() {
    require_root!();
    let node = Node::new();
    let Some(agent) = node.start_if_possible(Tier::Full) else {
        return;
    };
    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    let previous = network.add_enrolled(&pod);

    fs::remove_file(node.pin_dir().join("v1/links/mesh_connect4")).unwrap();
    let repair = reported(&agent, RepairKind::ProgramsDetached);
    assert_eq!((repair.last_day, &*repair.detail), (1, "mesh_connect4"));

    fs::remove_dir_all(node.pin_dir().join("v1")).unwrap();
    reported(&agent, RepairKind::PinsDeleted);
    // And with the pins, every pod.
    let repair = reported(&agent, RepairKind::Incomplete);
    assert!(
        repair.detail.contains("have no entry for the pod"),
        "{repair:?}"
    );
    assert_eq!(
        Programs::open(&node.pin_dir())
            .unwrap()
            .pods()
            .unwrap()
            .len(),
        1
    );
    let metrics = agent.metrics(&node);
    for kind in ["programs-detached", "pins-deleted", "incomplete"] {
        let line = format!("mesh_agent_repairs_total{{found=\"{kind}\"}} 1");
        assert!(metrics.contains(&line), "{line} is not in:\n{metrics}");
    }
    network.del(&pod, Some(&previous));
    node.assert_no_pod_in_the_kernel();
}

/// Waits for the agent's next reconciliation, which runs every ten seconds.
fn reported(agent: &Agent, kind: RepairKind) -> Repair {
    eventually("a reported repair", || {
        let repairs = agent.status().repairs;
        repairs.into_iter().find(|repair| repair.kind == kind)
    })
}

/// Enrolling the list would occupy the agent for seconds and leave no map entries for other pods.
#[test]
fn pod_with_too_many_ranges_is_refused_and_the_next_one_is_enrolled() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let ports: Vec<String> = (1..=u16::MAX)
        .step_by(2)
        .map(|port| port.to_string())
        .collect();
    let list = ports.join(",");
    let greedy = Pod::meshed(&[("skip-outbound-ports", list.as_str())]);
    let (_, result) = network.add(&greedy);
    let result = result.unwrap_err().to_string();
    for part in [
        "config.linkerd.io/skip-outbound-ports",
        "too many separate ports and ranges of ports: 32768, at most 128 are allowed",
    ] {
        assert!(result.contains(part), "{part} is not in {result}");
    }
    let modest = Pod::meshed(&[("skip-outbound-ports", "81,90-99")]);
    network.add_enrolled(&modest);
    assert_eq!(agent.pods().len(), 1);
}

#[test]
fn enrolments_are_counted_by_result() {
    require_root!();
    let node = Node::new();
    let agent = node.start(Tier::Nft);
    let network = Network::new(&node, "1.0.0");
    let (good, bad) = (Pod::meshed(&[]), Pod::meshed(&[("proxy-uid", "root")]));
    network.add_enrolled(&good);
    network.add(&bad).1.unwrap_err();
    let metrics = agent.metrics(&node);
    for line in [
        "mesh_agent_pods{tier=\"nft\"} 1",
        "mesh_agent_pods{tier=\"full\"} 0",
        "mesh_agent_enrolments_total{result=\"enrolled\",reason=\"nft\"} 1",
        "mesh_agent_enrolments_total{result=\"refused\",reason=\"invalid\"} 1",
        "mesh_agent_build_info{",
        "process_start_time_seconds",
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }
}
