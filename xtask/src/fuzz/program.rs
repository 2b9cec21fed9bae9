//! The fuzzer as a program: how it is built, and how it is started for one target.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::command;
use crate::workspace::{self, find_program};

/// Compiler flags for edge coverage.
const COVERAGE: [&str; 4] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    // Comparisons that are folded into one branch cannot be found one after the other.
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// The instrumentation of the code under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guidance {
    /// Edges, indirect calls and the operands of comparisons: an input soon has the values that the
    /// code looks for.
    Full,
    /// Edges only: two to three times the executions per second.
    Edges,
}

/// Directory of findings, from local runs and CI.
const DIRECTORY: &str = "target/fuzz";

/// Which target the program runs (`fuzz/src/main.rs`).
const TARGET_VARIABLE: &str = "MESH_FUZZ_TARGET";

pub(super) struct Program {
    root: PathBuf,
    path: PathBuf,
}

impl Program {
    pub(super) fn build(root: &Path, guidance: Guidance) -> anyhow::Result<Self> {
        if find_program("c++").is_none() {
            bail!(
                "libFuzzer is C++, and there is no c++ on this machine; as root: apt-get install g++"
            );
        }
        let host = host()?;
        let mut command = workspace::cargo(root);
        // With --target, because flags would reach build scripts and procedural macros otherwise,
        // which have no fuzzer to report to.
        command
            .args(["build", "--package", "mesh-fuzz", "--bin", "mesh-fuzz"])
            .args(["--features", "libfuzzer", "--profile", "fuzz"])
            .args(["--target", &host, "--target-dir", guidance.directory()])
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env("RUSTFLAGS", guidance.flags());
        command::run("fuzz", &mut command)?;
        Ok(Self {
            root: root.to_path_buf(),
            path: root
                .join(guidance.directory())
                .join(host)
                .join("fuzz/mesh-fuzz"),
        })
    }

    /// Returns a command for this target.
    pub(super) fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.root)
            .env(TARGET_VARIABLE, target)
            .env("RUST_BACKTRACE", "1");
        command
    }

    /// The corpus in the repository.
    pub(super) fn corpus(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/corpus").join(target)
    }

    /// The inputs found on this machine.
    pub(super) fn found(&self, target: &str) -> PathBuf {
        self.root.join(DIRECTORY).join("corpus").join(target)
    }

    /// The directory of findings.
    pub(super) fn artifacts(&self, target: &str) -> PathBuf {
        self.root.join(DIRECTORY).join("artifacts").join(target)
    }
}

impl Guidance {
    fn flags(self) -> String {
        let more: &[&str] = match self {
            Self::Full => &[
                "-Cllvm-args=-sanitizer-coverage-level=4",
                "-Cllvm-args=-sanitizer-coverage-trace-compares",
            ],
            Self::Edges => &["-Cllvm-args=-sanitizer-coverage-level=3"],
        };
        [&COVERAGE, more].concat().join(" ")
    }

    /// The target directory. Each instrumentation has its own, since other flags recompile
    /// everything.
    fn directory(self) -> &'static str {
        match self {
            Self::Full => DIRECTORY,
            Self::Edges => "target/fuzz-edges",
        }
    }
}

/// Returns the host's target triple.
fn host() -> anyhow::Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = command::captured_stdout(Command::new(rustc).arg("-vV"))
        .context("read the host of rustc")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not report a host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_a_target_triple() {
        assert!(host().expect("rustc runs").split('-').count() >= 3);
    }
}
