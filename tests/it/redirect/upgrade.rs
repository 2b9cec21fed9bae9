//! Upgrades of the agent while applications connect continuously.

use std::path::PathBuf;

use mesh_core::node::Tier;
use mesh_test_support::command::run;
use mesh_test_support::require_root;
use serde_json::{Value, json};

use super::fixture::{PORT, RedirectFixture};
use crate::harness::node::Node;
use crate::harness::other_programs;

/// Two upgrades and two downgrades.
const UPGRADES: usize = 4;

/// Returns the tag of each attached program, which the kernel computes from its instructions.
fn tags(node: &Node) -> Vec<(PathBuf, String)> {
    let links = node.pinned().into_iter().filter(|pin| {
        let kind = pin.parent().and_then(|directory| directory.file_name());
        kind.is_some_and(|kind| kind == "links" || kind == "steer")
    });
    let tag = |link: PathBuf| {
        let bpftool = |arguments: &str| -> Value {
            let text = run(format!("bpftool -j {arguments}"));
            serde_json::from_str(&text).expect("bpftool prints JSON")
        };
        let shown = bpftool(&format!("link show pinned {}", link.display()));
        let program = bpftool(&format!("prog show id {}", shown["prog_id"]));
        (link, program["tag"].as_str().unwrap_or("?").to_owned())
    };
    links.map(tag).collect()
}

#[test]
fn kernel_program_upgrade_under_load_loses_no_connection() {
    require_root!();
    let node = Node::start(Tier::Full);
    let fixture = RedirectFixture::build(&node);
    let before = tags(&node);
    assert_eq!(
        before.len(),
        9 + 1,
        "the programs of the node and of the pod"
    );

    let probe = ["connect", &fixture.peer4(PORT), "--stay"];
    let mut held = fixture.pod.app(probe);
    assert_eq!(held.next_event()["greeting"]["reached"], "proxy");
    let args = ["churn", &fixture.peer4(PORT), "until-stdin"];
    let churns: Vec<_> = (0..2).map(|_| fixture.pod.app(args)).collect();
    for churn in &churns {
        assert_eq!(churn.next_event()["churning"], true);
    }

    let other = other_programs();
    let other = other.to_string_lossy();
    for round in 0..UPGRADES {
        if round % 2 == 0 {
            node.restart_agent_with(&["--bpf-object", &other]);
            let now = tags(&node);
            let links = |tags: &[(PathBuf, String)]| -> Vec<PathBuf> {
                tags.iter().map(|(link, _)| link.clone()).collect()
            };
            assert_eq!(links(&now), links(&before));
            let changed = now
                .iter()
                .zip(&before)
                .filter(|(now, before)| now != before);
            assert!(changed.count() >= 7, "{before:?}\n{now:?}");
        } else {
            node.restart_agent_with(&[]);
            assert_eq!(tags(&node), before);
        }
    }
    let replaced = node.agent_log().matches("replaced in place").count();
    assert_eq!(replaced, UPGRADES, "{}", node.agent_log());

    for churn in churns {
        // `remaining_events` closes standard input, which stops the churn.
        let outcome = churn.remaining_events().pop().expect("a summary");
        assert_eq!(outcome["failed"], 0, "{outcome}");
        assert_eq!(
            outcome["reached"],
            json!({"proxy": outcome["connections"]}),
            "a connection went around the proxy"
        );
    }
    held.write_line("");
    assert_eq!(held.remaining_events(), [json!({"finished": true})]);
}
