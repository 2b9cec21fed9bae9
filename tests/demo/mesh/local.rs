//! The demo on this machine: a local node, which `meshctl local` runs.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::Value;

use super::{Environment, INJECT_DISABLED, INJECT_ENABLED, succeed};

/// The demo's copy of the manifests, at a fixed path so that `--down` finds it after `--keep`.
const DIRECTORY: &str = "/run/mesh-demo";

/// The node's name, distinct from other local nodes of the machine.
const NAME: &str = "mesh-demo";

pub(crate) struct Local {
    meshctl: PathBuf,
    dir: PathBuf,
}

impl Local {
    pub(crate) fn new(meshctl: &Path) -> Self {
        Self {
            meshctl: meshctl.to_owned(),
            dir: PathBuf::from(DIRECTORY),
        }
    }

    fn meshctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.meshctl);
        self.select_mesh(&mut command);
        command.args(args).stdin(Stdio::null());
        command
    }
}

impl Environment for Local {
    fn prepare(&self, manifests: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("create {}", self.dir.display()))?;
        let entries = std::fs::read_dir(manifests);
        for entry in entries.with_context(|| format!("read {}", manifests.display()))? {
            let path = entry?.path();
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            let name = path.file_name().context("a manifest has a name")?;
            std::fs::write(
                self.dir.join(name),
                text.replace(INJECT_ENABLED, INJECT_DISABLED),
            )?;
        }
        Ok(())
    }

    fn up(&self) -> anyhow::Result<()> {
        succeed(&mut self.meshctl(&["local", "up", DIRECTORY, "--name", NAME])).map(drop)
    }

    fn enable_injection(&self) -> anyhow::Result<()> {
        let manifest = self.dir.join("00-namespace.yaml");
        let text = std::fs::read_to_string(&manifest)?;
        std::fs::write(&manifest, text.replace(INJECT_DISABLED, INJECT_ENABLED))?;
        succeed(&mut self.meshctl(&["local", "apply", DIRECTORY])).map(drop)
    }

    fn add_policy(&self, manifest: &Path) -> anyhow::Result<()> {
        let name = manifest.file_name().context("a manifest has a name")?;
        std::fs::copy(manifest, self.dir.join(name)).context("add the policy to the directory")?;
        Ok(())
    }

    fn remove_policy(&self, manifest: &Path) -> anyhow::Result<()> {
        let name = manifest.file_name().context("a manifest has a name")?;
        std::fs::remove_file(self.dir.join(name)).context("remove the policy from the directory")
    }

    fn pods(&self) -> anyhow::Result<Vec<String>> {
        let text = succeed(&mut self.meshctl(&["local", "status", "-o", "json"]))?;
        let status: Value = serde_json::from_str(&text).context("parse the status")?;
        let pods = status["pods"].as_array();
        let pods = pods.context("the node's status lists its pods")?;
        let names = pods.iter().filter_map(|pod| pod["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn exec(&self, pod: &str, command: &[&str]) -> Command {
        self.meshctl(&[&["local", "exec", pod, "--"], command].concat())
    }

    fn select_mesh(&self, meshctl: &mut Command) {
        meshctl.env("MESHCTL_LOCAL", NAME);
    }

    fn down(&self) -> anyhow::Result<()> {
        if !self.dir.exists() {
            return Ok(());
        }
        // In a process group of its own, so that a second Ctrl-C cannot stop it halfway.
        succeed(self.meshctl(&["local", "down", DIRECTORY]).process_group(0))?;
        std::fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))
    }

    fn inspection_hints(&self, meshctl: &str) -> String {
        let dir = self.dir.display();
        format!(
            "  {meshctl} check\n  \
             {meshctl} stat --watch\n  \
             {meshctl} identity client\n  \
             {meshctl} local exec client -- bash        a shell in a pod\n  \
             {meshctl} diagnostics redirection\n  \
             {meshctl} local dashboard                  http://localhost:50750, until Ctrl-C\n\
             Its manifests are in {dir}; change them and run `{meshctl} local apply {dir}`."
        )
    }
}
