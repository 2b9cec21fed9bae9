//! `cargo xtask audit`: checks the lockfile with cargo-deny (`deny.toml` holds the rules). Weekly
//! on the forge; not part of `test`, because new advisories must not fail an unchanged commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::command::{captured_stdout, run as run_command};
use crate::stage;
use crate::workspace::{self, find_program};

const CARGO_DENY_VERSION: &str = "0.20.2";

/// The checks that need no network.
const OFFLINE_CHECKS: [&str; 3] = ["bans", "licenses", "sources"];

pub(crate) fn run(root: &Path, offline: bool) -> anyhow::Result<()> {
    let own = workspace::tools(root).join("bin/cargo-deny");
    let installed = own.is_file().then(|| own.clone());
    let works =
        |program: &PathBuf| captured_stdout(Command::new(program).arg("--version")).is_some();
    let found = installed
        .or_else(|| find_program("cargo-deny"))
        .filter(works);
    let program = match found {
        Some(program) => program,
        None => {
            let what = "cargo-deny, which reads deny.toml (several minutes)";
            stage::run("setup", what, || install(root))?;
            own
        }
    };
    let mut command = Command::new(program);
    command
        .current_dir(root)
        .args(["--workspace", "--all-features", "check"]);
    if offline {
        command.args(OFFLINE_CHECKS);
    }
    stage::run(
        "audit",
        "advisories, licences, duplicates and sources of the dependencies",
        || run_command("cargo-deny", &mut command),
    )
}

fn install(root: &Path) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    command.args(["install", "cargo-deny", "--locked", "--version"]);
    command
        .args([CARGO_DENY_VERSION, "--root"])
        .arg(workspace::tools(root));
    run_command("cargo-deny", &mut command).context("install cargo-deny")
}
