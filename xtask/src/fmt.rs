//! `cargo xtask fmt`: formats this workspace, the kernel programs' and the models'. `test` calls it
//! with `--check`.

use std::path::Path;

use anyhow::Context;

use crate::{command, workspace};

pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    for manifest in manifests(root) {
        let mut command = workspace::cargo(root);
        command.args(["fmt", "--all", "--manifest-path", manifest]);
        if check {
            command.args(["--", "--check"]);
        }
        command::run("cargo fmt", &mut command).with_context(|| {
            if check {
                "check the formatting (`cargo xtask fmt` repairs it)".to_owned()
            } else {
                format!("format {manifest}")
            }
        })?;
    }
    Ok(())
}

/// Kernel programs and models have workspaces of their own, which `--all` does not reach.
fn manifests(root: &Path) -> impl Iterator<Item = &'static str> {
    ["Cargo.toml", "mesh-ebpf/Cargo.toml", "models/Cargo.toml"]
        .into_iter()
        .filter(move |manifest| root.join(manifest).is_file())
}
