//! `cargo xtask build`: the kernel programs, then every program of the mesh, which embed them.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::{command, ebpf, setup, stage, workspace};

/// Package and the programs it brings.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("mesh-agent", &["mesh-agent", "mesh-cni"]),
    ("mesh-proxy", &["mesh-proxy"]),
    ("mesh-control-plane", &["mesh-controller"]),
    ("meshctl", &["meshctl"]),
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
    stage::run("build", profile, || {
        let mut command = workspace::cargo(root);
        command.args(["build", "--profile", profile]);
        for (package, _) in PROGRAMS {
            command.args(["--package", package]);
        }
        command::run("cargo build", &mut command)
    })?;
    for program in programs(root, dev) {
        println!("{}", program.display());
    }
    Ok(())
}

fn programs(root: &Path, dev: bool) -> impl Iterator<Item = PathBuf> {
    let folder = root
        .join("target")
        .join(if dev { "debug" } else { "release" });
    PROGRAMS
        .iter()
        .flat_map(|(_, names)| names.iter())
        .map(move |name| folder.join(name))
}
