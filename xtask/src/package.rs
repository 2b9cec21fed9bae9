//! `cargo xtask package`: the packages for machines outside Kubernetes, for dpkg and for rpm. They
//! hold the agent, the proxy and the command line, with their systemd units.
//!
//! nfpm, which is built from its sources, writes both from one description. Like images they depend
//! on nothing but the commit: times are the commit's, and paths of this machine are mapped away.

mod description;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::image::machine::{NAME, Origin, Programs};
use crate::workspace::find_program;
use crate::{command, go_build, stage, workspace};
use description::{Description, Placed};

/// The directory of nfpm's module, below the checkout.
const NFPM_DIRECTORY: &str = "xtask/nfpm";
const NFPM_PACKAGE: &str = "github.com/goreleaser/nfpm/v2/cmd/nfpm";

/// The folder of unit files and scripts, below the checkout.
const AGENT: &str = "mesh-agent";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PackageOptions {
    /// Packages to write; both by default
    pub(crate) formats: Vec<Format>,
    /// Use the unoptimised programs of the tests
    #[arg(long)]
    pub(crate) dev: bool,
    /// Use the existing programs in target/debug
    #[arg(long, requires = "dev")]
    pub(crate) no_build: bool,
    /// Directory for the packages [default: target/packages/dev or target/packages/release]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// A kind of package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Format {
    /// For Debian, Ubuntu and others with dpkg
    Deb,
    /// For Fedora, RHEL, SUSE and others with rpm
    Rpm,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Deb => "deb",
            Self::Rpm => "rpm",
        }
    }
}

pub(crate) fn run(root: &Path, options: &PackageOptions) -> anyhow::Result<()> {
    let mut formats = options.formats.clone();
    if formats.is_empty() {
        formats.extend(Format::value_variants());
    }
    formats.sort_unstable();
    formats.dedup();
    let origin = Origin::read(root)?;
    let programs = if options.no_build {
        Programs::of_tests(root)
    } else {
        Programs::build(root, options.dev, &origin)?
    };
    let out = options.out.clone().unwrap_or_else(|| {
        let kind = if options.dev { "dev" } else { "release" };
        root.join("target/packages").join(kind)
    });
    for package in write(root, &formats, &programs, &origin, &out)? {
        println!("{}", package.display());
    }
    Ok(())
}

/// Writes packages of the programs that the tests were built with, and returns their paths. Builds
/// no program.
pub fn from_tests(root: &Path, formats: &[Format], out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let origin = Origin::read(root)?;
    let programs = Programs::of_tests(root);
    write(root, formats, &programs, &origin, out)
}

fn write(
    root: &Path,
    formats: &[Format],
    programs: &Programs,
    origin: &Origin,
    out: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let nfpm = nfpm(root)?;
    stage::run("packages", "for machines outside Kubernetes", || {
        let staged = out.join("staged");
        if staged.exists() {
            fs::remove_dir_all(&staged).with_context(|| format!("remove {}", staged.display()))?;
        }
        let mut files = Vec::new();
        for (path, content) in contents(root, programs, origin)? {
            let source = staged.join(&path);
            if let Some(parent) = source.parent() {
                fs::create_dir_all(parent)
                    .with_context(|| format!("create {}", parent.display()))?;
            }
            fs::write(&source, content).with_context(|| format!("write {}", source.display()))?;
            files.push(Placed { path, source });
        }
        let description = Description {
            origin,
            files: &files,
            scripts: &root.join(AGENT).join("package"),
            glibc: &glibc(&programs.command_line())?,
        };
        let packages = formats
            .iter()
            .map(|format| package(&nfpm, *format, &description, out));
        let packages = packages.collect();
        fs::remove_dir_all(&staged).with_context(|| format!("remove {}", staged.display()))?;
        packages
    })
}

/// Returns the files of the packages by path.
fn contents(
    root: &Path,
    programs: &Programs,
    origin: &Origin,
) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut files = programs.files(root, origin)?;
    for (path, source) in [
        (
            "usr/lib/systemd/system/mesh-agent.service",
            "systemd/mesh-agent.service",
        ),
        (
            "usr/lib/systemd/system/mesh-proxy@.service",
            "systemd/mesh-proxy@.service",
        ),
        (
            "usr/lib/sysusers.d/mesh-machine.conf",
            "package/mesh-machine.conf",
        ),
    ] {
        let source = root.join(AGENT).join(source);
        let content = fs::read(&source).with_context(|| format!("read {}", source.display()))?;
        files.push((path.to_owned(), content));
    }
    let command_line = programs.command_line();
    for (shell, path) in [
        ("bash", "usr/share/bash-completion/completions/meshctl"),
        ("fish", "usr/share/fish/vendor_completions.d/meshctl.fish"),
        ("zsh", "usr/share/zsh/site-functions/_meshctl"),
    ] {
        let script =
            command::captured_stdout(Command::new(&command_line).args(["completion", shell]));
        let script = script.with_context(|| format!("the command line completes no {shell}"))?;
        files.push((path.to_owned(), script.into_bytes()));
    }
    Ok(files)
}

fn package(
    nfpm: &Path,
    format: Format,
    description: &Description<'_>,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let name = format.name();
    let config = out.join(format!("{name}.json"));
    fs::write(&config, description.to_json(format))
        .with_context(|| format!("write {}", config.display()))?;
    let package = out.join(format!("{}.{name}", NAME));
    let mut command = Command::new(nfpm);
    command
        .args(["package", "--packager", name, "--config"])
        .arg(&config)
        .arg("--target")
        .arg(&package)
        .env("SOURCE_DATE_EPOCH", description.origin.time.to_string());
    command::run("nfpm", &mut command)?;
    fs::remove_file(&config).with_context(|| format!("remove {}", config.display()))?;
    Ok(package)
}

/// Builds nfpm. Go's cache makes a repetition cheap.
fn nfpm(root: &Path) -> anyhow::Result<PathBuf> {
    if find_program("go").is_none() {
        bail!(
            "Go is required to build nfpm, which writes packages; install it from https://go.dev/dl"
        );
    }
    let output = workspace::tools(root).join("nfpm/nfpm");
    stage::run("nfpm", "from its sources", || {
        go_build::build(
            &root.join(NFPM_DIRECTORY),
            NFPM_PACKAGE,
            "",
            "-s -w",
            &output,
        )
    })?;
    Ok(output)
}

/// Returns the version of the C library that a dynamically linked program needs.
fn glibc(program: &Path) -> anyhow::Result<String> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--version-info", "--wide"]).arg(program);
    let printed = command::captured_stdout(&mut readelf).with_context(|| {
        format!(
            "readelf cannot read {}; binutils brings it",
            program.display()
        )
    })?;
    newest_glibc(&printed)
        .with_context(|| format!("{} needs no version of the C library", program.display()))
}

/// Reads the newest version from readelf's output.
fn newest_glibc(printed: &str) -> Option<String> {
    let versions = printed.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    let (major, minor) = versions.max()?;
    Some(format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_of_the_c_library_is_found() {
        let printed = "  0x0040:   Name: GLIBC_2.9  Flags: none  Version: 5\n  \
                       0x0050:   Name: GLIBC_2.34  Flags: none  Version: 4\n  \
                       0x0060:   Name: GLIBC_2.2.5  Flags: none  Version: 3\n  \
                       0x0070:   Name: GCC_3.0  Flags: none  Version: 2\n";
        assert_eq!(newest_glibc(printed).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc("Name: GCC_3.0"), None);
    }
}
