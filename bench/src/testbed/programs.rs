//! The programs of the mesh in a testbed, and their builds.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use xtask::{binaries, command, stage, workspace};

/// Paths of the programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) proxy: PathBuf,
    /// This program, which also implements the control plane, the applications and the load.
    pub(crate) bench: PathBuf,
    pub(crate) agent: PathBuf,
    /// Only measurements of the control plane need it, so that it may not exist.
    pub(crate) controller: PathBuf,
    /// Only the workload of the metrics API needs it, so that it may not exist.
    pub(crate) viz: PathBuf,
}

impl Programs {
    /// Returns the optimised proxy, for measurements, and builds it first if `build` is set.
    pub(crate) fn optimised(root: &Path, build: bool) -> anyhow::Result<Self> {
        if build {
            binaries::build_kernel_programs(root)?;
            stage::run("build", "the proxy, optimised", || {
                // Built separately, as for its image: the workspace would enable features of other
                // packages.
                let mut cargo = workspace::cargo(root);
                cargo.args(["build", "--release", "--package", "mesh-proxy"]);
                command::run("cargo build", &mut cargo)?;
                // A debug build suffices: under load only the agent's kernel programs run, which
                // are the same in every profile.
                compile(root, &["mesh-agent"])
            })?;
        }
        Self::at(
            &binaries::directory(root, false),
            &binaries::directory(root, true),
        )
    }

    /// Returns programs with debug assertions, for functional tests, and builds them first if
    /// `build` is set.
    pub(crate) fn checked(root: &Path, build: bool) -> anyhow::Result<Self> {
        if build {
            binaries::build_kernel_programs(root)?;
            stage::run("build", "the proxy and the agent", || {
                compile(root, &["mesh-proxy", "mesh-agent"])
            })?;
        }
        let debug = binaries::directory(root, true);
        Self::at(&debug, &debug)
    }

    /// Returns the optimised controller, for measurements without a proxy, and builds it first if
    /// `build` is set.
    pub(crate) fn controller(root: &Path, build: bool) -> anyhow::Result<Self> {
        if build {
            build_optimised(root, "mesh-control-plane")?;
        }
        let release = binaries::directory(root, false);
        let programs = Self::unchecked(&release, &release)?;
        if !programs.controller.exists() {
            bail!(
                "{} does not exist: run without --no-build",
                programs.controller.display()
            );
        }
        Ok(programs)
    }

    fn at(proxy: &Path, agent: &Path) -> anyhow::Result<Self> {
        let programs = Self::unchecked(proxy, agent)?;
        for program in [&programs.proxy, &programs.agent] {
            if !program.exists() {
                bail!(
                    "{} does not exist: run without --no-build",
                    program.display()
                );
            }
        }
        Ok(programs)
    }

    fn unchecked(proxy: &Path, agent: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            controller: proxy.join("mesh-controller"),
            viz: proxy.join("mesh-viz"),
            proxy: proxy.join("mesh-proxy"),
            bench: env::current_exe().context("find this program")?,
            agent: agent.join("mesh-agent"),
        })
    }
}

/// Builds the optimised programs of a package.
pub(crate) fn build_optimised(root: &Path, package: &str) -> anyhow::Result<()> {
    stage::run("build", &format!("{package}, optimised"), || {
        let mut cargo = workspace::cargo(root);
        cargo.args(["build", "--release", "--package", package]);
        command::run("cargo build", &mut cargo)
    })
}

/// Builds programs with the features of the whole workspace, as the tests do.
fn compile(root: &Path, programs: &[&str]) -> anyhow::Result<()> {
    let mut cargo = workspace::cargo(root);
    cargo.args(["build", "--workspace"]);
    for program in programs {
        cargo.args(["--bin", program]);
    }
    command::run("cargo build", &mut cargo)
}
