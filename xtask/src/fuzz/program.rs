//! The fuzzer as a program: how it is built, and how it is started for one target.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::{
    command,
    workspace::{self, find_program},
};

/// What rustc has its LLVM do: count the edges that are taken.
const COVERAGE: [&str; 4] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    // Comparisons that are folded into one branch cannot be found one after the other.
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// How much the fuzzer is told of what the code under test does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guidance {
    /// Which edges are taken, who calls whom indirectly, and what is compared with what: an input
    /// soon has the values that something looks for.
    Full,
    /// Which edges are taken: two to three times as many executions a second.
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

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The program, to be told what to do with this target.
    pub(super) fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.root)
            .env(TARGET_VARIABLE, target)
            .env("RUST_BACKTRACE", "1");
        command
    }

    /// The inputs that are kept in the repository.
    pub(super) fn corpus(&self, target: &str) -> PathBuf {
        self.root.join("fuzz/corpus").join(target)
    }

    /// The inputs that were found on this machine.
    pub(super) fn found(&self, target: &str) -> PathBuf {
        self.root.join(DIRECTORY).join("corpus").join(target)
    }

    /// Where findings are written to.
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

    /// Where it is built. Each has one of its own, as ordinary builds have: with other flags
    /// everything would be compiled anew.
    fn directory(self) -> &'static str {
        match self {
            Self::Full => DIRECTORY,
            Self::Edges => "target/fuzz-edges",
        }
    }
}

/// What this machine is called by rustc.
fn host() -> anyhow::Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = command::captured_stdout(Command::new(rustc).arg("-vV"))
        .context("read the host of rustc")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_a_target_triple() {
        assert!(host().expect("rustc runs").split('-').count() >= 3);
    }
}
