//! The agent installs the plugin on its node, keeps it installed, and removes it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use mesh_agent::redirect::Tier;
use mesh_core::node::{CniStatus, Repair, RepairKind};
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;

use crate::agent::{Agent, Node};
use crate::runtime::{Network, Pod};

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}"#;

struct Directories {
    conf: PathBuf,
    bin: PathBuf,
}

impl Directories {
    fn below(node: &Node) -> Self {
        let directories = Self {
            conf: node.path("net.d"),
            bin: node.path("bin"),
        };
        fs::create_dir(&directories.conf).unwrap();
        fs::create_dir(&directories.bin).unwrap();
        directories
    }

    fn flags(&self) -> [&str; 4] {
        [
            "--cni-conf-dir",
            self.conf.to_str().unwrap(),
            "--cni-bin-dir",
            self.bin.to_str().unwrap(),
        ]
    }

    fn start(&self, node: &Node) -> Agent {
        let mut arguments = vec!["--tier", Tier::Nft.as_str()];
        arguments.extend(self.flags());
        node.start_with(&arguments).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.conf.join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.conf.join(name)).unwrap()
    }
}

/// Waits until the plugin is in this file.
fn chained(agent: &Agent, file: &str) -> CniStatus {
    eventually("the plugin in the network configuration", || {
        let status = agent.status().cni?;
        (status.chained && status.file.as_deref() == Some(file)).then_some(status)
    })
}

fn kinds(repairs: &[Repair]) -> Vec<(RepairKind, u32)> {
    let kinds = repairs.iter();
    kinds.map(|repair| (repair.kind, repair.last_day)).collect()
}

/// Waits until the agent has repaired the plugin's program and reports it.
fn repaired(agent: &Agent, directories: &Directories, kind: RepairKind) -> u32 {
    // The agent checks when something in this directory changes, and otherwise every ten seconds.
    directories.write("99-touched", "");
    let repairs = eventually("a reported repair of the program", || {
        let repairs = kinds(&agent.status().repairs);
        let of_kind = repairs.into_iter().find(|(found, _)| *found == kind);
        of_kind.map(|(_, count)| count)
    });
    let program = directories.bin.join("mesh-cni");
    let mode = fs::metadata(&program).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755, "{kind}");
    repairs
}

#[test]
fn damaged_plugin_is_repaired_and_the_repair_is_reported() {
    require_root!();
    let node = Node::new();
    let directories = Directories::below(&node);
    let agent = directories.start(&node);
    directories.write("10-bridge.conflist", BRIDGE);
    chained(&agent, "10-bridge.conflist");
    assert_eq!(agent.status().repairs, []);

    let program = directories.bin.join("mesh-cni");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        repaired(&agent, &directories, RepairKind::PluginNotExecutable),
        1
    );
    fs::remove_file(&program).unwrap();
    assert_eq!(repaired(&agent, &directories, RepairKind::PluginMissing), 1);
    fs::write(&program, "another program").unwrap();
    assert_eq!(repaired(&agent, &directories, RepairKind::PluginAltered), 1);
    let metrics = agent.metrics(&node);
    for kind in ["plugin-not-executable", "plugin-missing", "plugin-altered"] {
        let line = format!("mesh_agent_repairs_total{{found=\"{kind}\"}} 1");
        assert!(metrics.contains(&line), "{line} is not in:\n{metrics}");
    }

    // The next agent reads the record of repairs, and that the plugin was installed.
    agent.kill();
    fs::remove_file(&program).unwrap();
    let agent = directories.start(&node);
    let repairs = eventually("the repair after the restart", || {
        let repairs = kinds(&agent.status().repairs);
        repairs
            .contains(&(RepairKind::PluginMissing, 2))
            .then_some(repairs)
    });
    assert_eq!(repairs.len(), 3, "{repairs:?}");
    drop(agent);
    assert!(node.uninstall_with(&directories.flags()));
    assert!(!node.state_dir().exists(), "the record is removed, too");
}

#[test]
fn plugin_is_kept_in_the_chain_until_uninstalled() {
    require_root!();
    let node = Node::new();
    let directories = Directories::below(&node);
    let agent = directories.start(&node);
    let status = eventually("the reason why the plugin is not installed", || {
        agent.status().cni.filter(|cni| !cni.reason.is_empty())
    });
    assert!(
        status
            .reason
            .starts_with("there is no network configuration yet")
    );
    assert!(
        agent
            .get(&node, "/ready")
            .contains("mesh-cni to be in the node's CNI configuration")
    );
    assert!(directories.bin.join("mesh-cni").exists());

    directories.write("10-bridge.conflist", BRIDGE);
    let status = chained(&agent, "10-bridge.conflist");
    assert_eq!(status.plugins, ["bridge", "mesh-cni"]);
    assert!(agent.get(&node, "/ready").starts_with("HTTP/1.1 200"));
    let entry = directories.read("10-bridge.conflist");
    assert!(entry.contains(node.socket().to_str().unwrap()), "{entry}");

    directories.write("10-bridge.conflist", BRIDGE);
    eventually("the plugin in the new network configuration", || {
        directories.read("10-bridge.conflist").contains("mesh-cni")
    });
    directories.write("05-first.conflist", BRIDGE);
    chained(&agent, "05-first.conflist");

    let repairs = agent.status().repairs;
    assert_eq!(
        kinds(&repairs),
        [
            (RepairKind::PluginUnchained, 1),
            (RepairKind::PluginShadowed, 1)
        ],
        "the first installation is not a repair: {repairs:?}"
    );
    assert_eq!(
        repairs[1].detail,
        "05-first.conflist sorts before 10-bridge.conflist"
    );

    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    network.add_enrolled(&pod);
    // As when the agent's pod is restarted.
    assert!(agent.terminate());
    assert!(directories.read("05-first.conflist").contains("mesh-cni"));
    assert_eq!(node.records().len(), 1);

    assert!(node.uninstall_with(&directories.flags()));
    for name in ["05-first.conflist", "10-bridge.conflist"] {
        assert_eq!(directories.read(name), BRIDGE, "{name}");
    }
    assert!(!directories.bin.join("mesh-cni").exists());
    assert!(!node.state_dir().exists() && !node.pin_dir().exists());
    assert!(pod.netns.run("nft list ruleset").is_empty());
}
