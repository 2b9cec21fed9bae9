//! `cargo xtask build`: the kernel programs, then every program of the mesh, which embed them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::{command, ebpf, setup, stage, workspace};

/// The installed programs.
const PROGRAMS: [&str; 7] = [
    "mesh-agent",
    "mesh-cni",
    "mesh-init",
    "mesh-proxy",
    "mesh-controller",
    "mesh-viz",
    "meshctl",
];

/// Builds everything and prints where the programs are.
pub(crate) fn run(root: &Path, dev: bool) -> anyhow::Result<()> {
    build(root, dev, &[])?;
    for program in programs(root, dev) {
        println!("{}", program.display());
    }
    Ok(())
}

/// Builds the kernel programs, the programs of the mesh, and these others.
pub(crate) fn build(root: &Path, dev: bool, others: &[&str]) -> anyhow::Result<()> {
    build_kernel_programs(root)?;
    let profile = if dev { "dev" } else { "release" };
    stage::run("build", profile, || {
        let mut command = cargo_build(root, profile);
        for program in PROGRAMS.iter().chain(others) {
            command.args(["--bin", program]);
        }
        command::run("cargo build", &mut command)
    })
}

/// Installs the dependencies of the build, and builds the kernel programs, which a `mesh-agent`
/// that is compiled afterwards embeds.
pub fn build_kernel_programs(root: &Path) -> anyhow::Result<()> {
    build_objects(root, &[ebpf::build])
}

/// Builds the kernel programs, and the other versions that replace them in tests.
pub fn build_kernel_programs_for_tests(root: &Path) -> anyhow::Result<()> {
    build_objects(root, &[ebpf::build, ebpf::build_other])
}

type Build = fn(&Path) -> anyhow::Result<PathBuf>;

fn build_objects(root: &Path, objects: &[Build]) -> anyhow::Result<()> {
    let missing = stage::run("setup", "what this machine lacks", || setup::ready(root))?;
    if missing.bpf.is_some() {
        bail!("mesh-agent embeds the kernel programs, and they cannot be built here; see above");
    }
    stage::run("ebpf", "the kernel programs", || {
        let build = |build: &Build| build(root).map(drop).context("build the kernel programs");
        objects.iter().try_for_each(build)
    })
}

/// Compiles every program of the workspace, in the usual target directory or another one.
pub(crate) fn compile(root: &Path, profile: &str, target: Option<&Path>) -> anyhow::Result<()> {
    let mut command = cargo_build(root, profile);
    command.arg("--bins");
    if let Some(target) = target {
        command.arg("--target-dir").arg(target);
    }
    command::run("cargo build", &mut command)
}

/// Builds the whole workspace like the tests: a subset would resolve other features and recompile
/// dependencies.
fn cargo_build(root: &Path, profile: &str) -> Command {
    let mut command = workspace::cargo(root);
    command.args(["build", "--profile", profile, "--workspace"]);
    command
}

/// Returns the directory of the programs of a profile.
pub fn directory(root: &Path, dev: bool) -> PathBuf {
    let profile = if dev { "debug" } else { "release" };
    root.join("target").join(profile)
}

fn programs(root: &Path, dev: bool) -> impl Iterator<Item = PathBuf> {
    let directory = directory(root, dev);
    PROGRAMS.iter().map(move |name| directory.join(name))
}
