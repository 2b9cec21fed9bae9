//! The agent and the CNI configuration of its node: it puts the plugin there, keeps it there, and takes it away with everything else.

use std::{fs, path::PathBuf};

use mesh_agent::redirect::Tier;
use mesh_core::node::CniStatus;

use crate::{
    agent::{Agent, Node, eventually},
    runtime::{Network, Pod},
    skipped,
};

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}"#;

/// The directories that a node has for its plugins.
struct Directories {
    conf: PathBuf,
    bin: PathBuf,
}

impl Directories {
    fn below(node: &Node) -> Self {
        let directories = Self {
            conf: node.dir.path().join("net.d"),
            bin: node.dir.path().join("bin"),
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
    eventually(|| {
        let status = agent.status().cni.unwrap();
        (status.chained && status.file.as_deref() == Some(file)).then_some(status)
    })
}

#[test]
fn the_plugin_is_kept_in_the_chain_and_taken_out_at_the_end() {
    if skipped("the_plugin_is_kept_in_the_chain_and_taken_out_at_the_end") {
        return;
    }
    let node = Node::new();
    let directories = Directories::below(&node);
    let agent = directories.start(&node);
    let status = eventually(|| agent.status().cni.filter(|cni| !cni.reason.is_empty()));
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
    eventually(|| {
        directories
            .read("10-bridge.conflist")
            .contains("mesh-cni")
            .then_some(())
    });
    directories.write("05-first.conflist", BRIDGE);
    chained(&agent, "05-first.conflist");

    let network = Network::new(&node, "1.0.0");
    let pod = Pod::meshed(&[]);
    assert!(network.add(&pod).1.is_success);
    // As when its pod is restarted.
    assert!(agent.terminate());
    assert!(directories.read("05-first.conflist").contains("mesh-cni"));
    assert_eq!(node.records().len(), 1);

    assert!(node.uninstall_with(&directories.flags()));
    for name in ["05-first.conflist", "10-bridge.conflist"] {
        assert_eq!(directories.read(name), BRIDGE, "{name}");
    }
    assert!(!directories.bin.join("mesh-cni").exists());
    assert!(!node.state_dir().exists() && !node.pin_dir.exists());
    assert!(pod.netns.exec("nft list ruleset").is_empty());
}
