//! `cargo xtask bench`, `soak` and `test --suites`: builds `mesh-bench`, which measures, and runs
//! it. `chaos`: the same with `mesh-chaos`, which plants faults.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::{binaries, command, stage, workspace};

/// Passed to the program, which documents them with `--help`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MeasurementOptions {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) options: Vec<String>,
}

/// Runs the command `name` of `mesh-bench` with these arguments, and returns its exit status.
pub(crate) fn run(root: &Path, name: &str, arguments: &[String]) -> anyhow::Result<ExitCode> {
    if !arguments.iter().any(|argument| argument == "--no-build") {
        stage::run("build", "the programs that measure", || {
            // Built separately: the workspace would enable features of other packages, which cost
            // CPU time.
            let mut cargo = workspace::cargo(root);
            cargo.args(["build", "--release", "--package", "mesh-bench"]);
            command::run("cargo build", &mut cargo)
        })?;
    }
    let program = binaries::directory(root, false).join("mesh-bench");
    command::run_to_exit(Command::new(program).arg(name).args(arguments))
}

/// Runs the campaign of faults with these arguments, and returns its exit status.
pub(crate) fn chaos(root: &Path, arguments: &[String]) -> anyhow::Result<ExitCode> {
    stage::run(
        "build",
        "the program of the campaign, which builds the tests",
        || {
            let mut cargo = workspace::cargo(root);
            let cargo = cargo.args(["build", "--workspace", "--bin", "mesh-chaos"]);
            command::run("cargo build", cargo)
        },
    )?;
    let program = binaries::directory(root, true).join("mesh-chaos");
    command::run_to_exit(Command::new(program).args(arguments))
}
