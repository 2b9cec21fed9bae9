//! `cargo xtask bench`, `soak` and `test --suites`: builds `mesh-bench`, which measures, and runs it.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Context;

use crate::{binaries, command, stage, workspace};

/// Runs a command of `mesh-bench` with these arguments, and returns its exit status.
pub(crate) fn run(root: &Path, command: &str, arguments: &[String]) -> anyhow::Result<ExitCode> {
    if !arguments.iter().any(|argument| argument == "--no-build") {
        stage::run("build", "the programs that measure", || {
            // By itself: the workspace would add features of other packages, which cost load.
            let mut cargo = workspace::cargo(root);
            cargo.args(["build", "--release", "--package", "mesh-bench"]);
            command::run("cargo build", &mut cargo)
        })?;
    }
    let program = binaries::folder(root, false).join("mesh-bench");
    let status = Command::new(&program)
        .arg(command)
        .args(arguments)
        .status()
        .with_context(|| format!("run {}", program.display()))?;
    // A process that a signal ended has no status.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
