//! A cluster of kind's for one run of the end-to-end tests (`cargo xtask test --e2e --kind`): two
//! nodes, gone when the run ends. For machines with Docker: a developer's, the forge's.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::{self, captured_stdout};
use crate::workspace::find_program;

/// Not the default `kind`, which the user may have created.
const NAME: &str = "mesh-test";

/// A worker and the control plane, to cover differences between nodes.
const CONFIG: &str = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n- role: worker\n";

/// The tests' routes are in the experimental channel of this release.
const GATEWAY_API: &str = "https://github.com/kubernetes-sigs/gateway-api/releases/download/v1.6.3/experimental-install.yaml";

pub(crate) struct Kind(());

impl Kind {
    /// Creates the cluster; its context is in the user's kubeconfig until it is deleted.
    pub(crate) fn create(root: &Path) -> anyhow::Result<Self> {
        if find_program("kind").is_none() {
            bail!(
                "there is no kind on PATH; get it from https://kind.sigs.k8s.io, it needs Docker"
            );
        }
        let there =
            captured_stdout(Command::new("kind").args(["get", "clusters"])).unwrap_or_default();
        if there.lines().any(|name| name == NAME) {
            bail!(
                "there is a cluster {NAME} of kind's already, and the tests want one of their own: `kind delete cluster --name {NAME}`"
            );
        }
        let config = root.join("target/kind.yaml");
        fs::create_dir_all(root.join("target")).context("create target")?;
        fs::write(&config, CONFIG).with_context(|| format!("write {}", config.display()))?;
        // From here on, a failure deletes the cluster.
        let cluster = Self(());
        let mut create = Command::new("kind");
        create
            .args(["create", "cluster", "--name", NAME, "--wait", "120s"])
            .arg("--config")
            .arg(config);
        command::run("kind", &mut create)?;
        let mut apply = Command::new("kubectl");
        apply.args(["--context", &cluster.context(), "apply", "--server-side"]);
        command::run("kubectl", apply.args(["-f", GATEWAY_API]))
            .context("install the Gateway API")?;
        Ok(cluster)
    }

    pub(crate) fn context(&self) -> String {
        format!("kind-{NAME}")
    }
}

impl Drop for Kind {
    fn drop(&mut self) {
        let mut delete = Command::new("kind");
        delete.args(["delete", "cluster", "--name", NAME]);
        if let Err(error) = command::run("kind", &mut delete) {
            eprintln!("    delete the cluster by hand: {error:#}");
        }
    }
}
