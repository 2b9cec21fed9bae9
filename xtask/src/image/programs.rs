//! Builds the programs of the images and returns their bytes.
//!
//! Development images hold the programs of `cargo build`, so that an image costs no second
//! compilation. Released ones are built in a directory of their own, optimised, with this machine's
//! paths mapped away: the same commit gives the same bytes in any checkout. One build makes the
//! programs of all images and `meshctl`, whichever images are requested: cargo gives packages that
//! are built together the features of all of them, so a build of some of them would compile their
//! dependencies again with other features, and give other bytes. `xtask/wrapper/link-static`
//! decides which programs are linked statically, for both kinds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, bail};

use super::contents::{self, Program};
use super::layer::Compression;
use super::origin::Origin;
use super::{elf, empty_directory};
use crate::workspace::{self, find_program};
use crate::{binaries, command};

/// A build of the programs.
pub(crate) struct Programs {
    directory: PathBuf,
    /// The directory of the whole build, if it is only for comparison.
    scratch: Option<PathBuf>,
    dev: bool,
}

/// The wrapper by its name alone. Cargo makes the wrapper's path part of every symbol's name, and a
/// path would differ between checkouts.
const WRAPPER: &str = "link-static";
const WRAPPER_DIRECTORY: &str = "xtask/wrapper";

/// Cargo.toml describes it.
const PROFILE: &str = "image";
/// Selects the program that the wrapper optimises across crates: the one that handles requests. For
/// the others this would take longer than the rest of the build.
const OPTIMISED_VARIABLE: &str = "MESH_OPTIMISED_ACROSS_CRATES";
const OPTIMISED: &str = "mesh_proxy";

impl Programs {
    /// Builds the programs of all images, and `meshctl`.
    pub(crate) fn build(root: &Path, dev: bool, origin: &Origin) -> anyhow::Result<Self> {
        if dev {
            binaries::compile(root, "dev", None)?;
            return Ok(Self::of_tests(root));
        }
        let target = root.join("target/image");
        Self::build_release(root, origin, &target, None)
    }

    /// Builds everything again in an empty directory, which `remove` deletes.
    pub(crate) fn build_from_nothing(
        root: &Path,
        dev: bool,
        origin: &Origin,
    ) -> anyhow::Result<Self> {
        let target = root.join("target/image-check");
        empty_directory(&target)?;
        if dev {
            binaries::compile(root, "dev", Some(&target))?;
            return Ok(Self {
                directory: target.join("debug"),
                scratch: Some(target),
                dev,
            });
        }
        let scratch = Some(target.clone());
        Self::build_release(root, origin, &target, scratch)
    }

    /// The programs that the tests start.
    pub(crate) fn of_tests(root: &Path) -> Self {
        Self {
            directory: binaries::directory(root, true),
            scratch: None,
            dev: true,
        }
    }

    fn build_release(
        root: &Path,
        origin: &Origin,
        target: &Path,
        scratch: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = [root.join(WRAPPER_DIRECTORY)]
            .into_iter()
            .chain(env::split_paths(&path));
        let path = env::join_paths(directories).context("put the wrapper on PATH")?;
        let mut directories = workspace::mapped_directories(root)?;
        directories.push((target.to_path_buf(), "/mesh/target"));
        let mapping = workspace::mapping_flags("--remap-path-prefix=", &directories);
        // The proxy is made from the bitcode of all libraries, the other programs from their
        // machine code.
        let flags = format!("{mapping} -Cembed-bitcode=yes");
        // The TLS library is C, whose error reports name files.
        let c_flags = workspace::mapping_flags("-ffile-prefix-map=", &directories);
        let mut command = workspace::cargo(root);
        command.args(["build", "--profile", PROFILE, "--locked"]);
        for program in contents::programs() {
            command.args(["--package", program.package, "--bin", program.binary]);
        }
        command
            .arg("--target-dir")
            .arg(target)
            .env("PATH", &path)
            .env("RUSTC_WORKSPACE_WRAPPER", WRAPPER)
            .env(OPTIMISED_VARIABLE, OPTIMISED)
            .env("RUSTFLAGS", &flags)
            .env("CFLAGS", &c_flags)
            .env("MESH_BUILD_DATE", origin.created());
        if let Some(revision) = &origin.revision {
            command.env("MESH_BUILD_GIT_SHA", revision);
        }
        command::run("cargo build", &mut command)?;
        Ok(Self {
            directory: target.join(PROFILE),
            scratch,
            dev: false,
        })
    }

    /// The bytes of a program as they go into an image: static, and without the debug information,
    /// which is most of it.
    pub(crate) fn content(&self, program: &Program) -> anyhow::Result<Vec<u8>> {
        let file = self.directory.join(program.binary);
        let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let is_static =
            elf::is_static(&content).with_context(|| format!("look at {}", file.display()))?;
        if !is_static {
            bail!(
                "{} is not linked statically, and an image has no C library: install libc6-dev (glibc-static on other distributions), then \
                 `cargo clean -p {}` and build again",
                file.display(),
                program.package
            );
        }
        stripped(&file)
    }

    /// The command line, which is built with the images and goes into none of them.
    pub(crate) fn command_line(&self) -> PathBuf {
        self.directory.join(contents::COMMAND_LINE.binary)
    }

    pub(crate) fn compression(&self) -> Compression {
        if self.dev {
            Compression::None
        } else {
            Compression::Gzip
        }
    }

    /// Removes a build that was made to be compared.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        match self.scratch {
            Some(target) => {
                fs::remove_dir_all(&target).with_context(|| format!("remove {}", target.display()))
            }
            None => Ok(()),
        }
    }
}

/// A copy without debug information. Names of functions stay: a backtrace and a profile of the
/// running program are readable.
pub(super) fn stripped(file: &Path) -> anyhow::Result<Vec<u8>> {
    let strip = find_program("strip").context("there is no `strip` here; binutils brings it")?;
    let copy = file.with_extension("stripped");
    let mut command = Command::new(strip);
    command
        .args(["--strip-debug", "--enable-deterministic-archives", "-o"])
        .arg(&copy)
        .arg(file);
    command::run("strip", &mut command)?;
    let content = fs::read(&copy).with_context(|| format!("read {}", copy.display()))?;
    fs::remove_file(&copy).with_context(|| format!("remove {}", copy.display()))?;
    Ok(content)
}
