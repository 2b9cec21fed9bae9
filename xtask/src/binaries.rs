//! `cargo xtask build`: the kernel programs, then every program of the mesh, which embed them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::{command, ebpf, setup, stage, workspace};

/// What people run.
const PROGRAMS: [&str; 5] = [
    "mesh-agent",
    "mesh-cni",
    "mesh-proxy",
    "mesh-controller",
    "meshctl",
];

/// Builds everything and prints where the programs are.
pub(crate) fn run(root: &Path, dev: bool) -> anyhow::Result<()> {
    let missing = stage::run("setup", "what this machine lacks", || setup::ready(root))?;
    if missing.bpf.is_some() {
        bail!("mesh-agent embeds the kernel programs, and they cannot be built here; see above");
    }
    stage::run("ebpf", "the kernel programs", || {
        ebpf::build(root).context("build the kernel programs")
    })?;
    let profile = if dev { "dev" } else { "release" };
    stage::run("build", profile, || compile(root, profile, None))?;
    for program in programs(root, dev) {
        println!("{}", program.display());
    }
    Ok(())
}

/// Compiles every program of the workspace, in the usual target folder or another one.
pub(crate) fn compile(root: &Path, profile: &str, target: Option<&Path>) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    // The whole workspace, as the tests build it: a part of it would resolve other features and
    // compile the dependencies anew.
    command.args(["build", "--profile", profile, "--workspace", "--bins"]);
    if let Some(target) = target {
        command.arg("--target-dir").arg(target);
    }
    command::run("cargo build", &mut command)
}

/// Where the programs of a profile are.
pub(crate) fn folder(root: &Path, dev: bool) -> PathBuf {
    let profile = if dev { "debug" } else { "release" };
    root.join("target").join(profile)
}

fn programs(root: &Path, dev: bool) -> impl Iterator<Item = PathBuf> {
    let folder = folder(root, dev);
    PROGRAMS.iter().map(move |name| folder.join(name))
}
