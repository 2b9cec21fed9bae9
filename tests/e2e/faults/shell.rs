//! An operator's shell: kubectl, helm and meshctl use the cluster's context, and the directory has
//! the charts and the certificates.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use mesh_test_support::cluster::Cluster;
use mesh_test_support::command::succeed;

pub(crate) struct Shell {
    directory: tempfile::TempDir,
    /// Functions defined for every command.
    prelude: String,
}

/// Runs a command on any node, whose file system is below /host.
const ON_NODE: &str =
    "on_node() { kubectl exec -n node-look daemonset/look -c main -- sh -c \"$1\"; }";

impl Shell {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let charts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../helm");
        symlink(charts, directory.path().join("helm")).expect("a link to the charts");
        let programs = ["kubectl", "helm", "meshctl"].map(|name| {
            let words = words(&cluster.program(name));
            format!("{name}() {{ command {words} \"$@\"; }}\n")
        });
        let nodes = cluster.list("nodes");
        let node = nodes
            .first()
            .and_then(|node| node["metadata"]["name"].as_str());
        let node = node.expect("the cluster has a node");
        let prelude = format!(
            "set -euo pipefail\n{}{ON_NODE}\nnode={node}\n",
            programs.concat()
        );
        Self { directory, prelude }
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a command line and returns its output.
    pub(crate) fn run(&self, line: &str) -> String {
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("{}{line}", self.prelude)])
            .current_dir(self.directory())
            .stdin(Stdio::null());
        succeed(&mut command)
    }
}

/// A command and its arguments, quoted.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_string_lossy()));
    quoted.collect::<Vec<_>>().join(" ")
}
