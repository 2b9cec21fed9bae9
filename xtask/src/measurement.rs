//! `cargo xtask bench`, `soak` and `test --suites`: builds `mesh-bench`, which measures, and runs
//! it. `chaos` and `test --kernel`: the same with `mesh-chaos` and `mesh-kernels`, which run tests.
//! `simulate`: the same with `mesh-simulate` and `mesh-simulate-controllers`.

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
        // Built separately: the workspace would enable features of other packages, which cost CPU
        // time.
        build(root, &["--release", "--package", "mesh-bench"])?;
    }
    let program = binaries::directory(root, false).join("mesh-bench");
    command::run_to_exit(Command::new(program).arg(name).args(arguments))
}

/// Runs a program that builds and runs tests with these arguments, and returns its exit status.
pub(crate) fn check(root: &Path, name: &str, rest: &[String]) -> anyhow::Result<ExitCode> {
    build(root, &["--workspace", "--bin", name])?;
    command::run_to_exit(Command::new(binaries::directory(root, true).join(name)).args(rest))
}

/// Runs `mesh-simulate` with these arguments, or with `--controllers` the program that simulates
/// them, and returns its exit status.
pub(crate) fn simulate(root: &Path, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let (chosen, rest): (Vec<_>, Vec<_>) = arguments.iter().partition(|it| *it == "--controllers");
    let (package, name) = if chosen.is_empty() {
        ("mesh-simulator", "mesh-simulate")
    } else {
        ("mesh-controller-simulator", "mesh-simulate-controllers")
    };
    build(root, &["--profile", "simulation", "--package", package])?;
    let program = root.join("target/simulation").join(name);
    command::run_to_exit(Command::new(program).args(rest))
}

fn build(root: &Path, options: &[&str]) -> anyhow::Result<()> {
    stage::run("build", "the program that measures or runs tests", || {
        let mut cargo = workspace::cargo(root);
        command::run("cargo build", cargo.arg("build").args(options))
    })
}
