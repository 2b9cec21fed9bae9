//! `cargo xtask setup`: finds missing dependencies, prints why each is needed, and installs them if
//! run as root. `test` and `demo` start with it, so that it must be fast: with nothing missing it
//! only checks files.

mod apt;
mod bpf;
mod components;
mod helm;
mod packages;
mod workload_api;

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::workspace;
use packages::{Need, Package};

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct SetupOptions {
    /// Install nothing; list missing dependencies and fail if there are any
    #[arg(long)]
    pub(crate) check: bool,
}

/// Dependencies that are still missing after `prepare`.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    packages: Vec<&'static Package>,
    components: Vec<&'static str>,
    /// The reason why the kernel programs cannot be built, if any.
    pub(crate) bpf: Option<String>,
}

impl Missing {
    pub(crate) fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.components.is_empty() && self.bpf.is_none()
    }

    /// Returns whether the workspace cannot be built or checked.
    fn stops_the_build(&self) -> bool {
        !self.components.is_empty()
            || self
                .packages
                .iter()
                .any(|package| package.need == Need::Build)
    }
}

/// Runs the command.
pub(crate) fn run(root: &Path, options: SetupOptions) -> anyhow::Result<()> {
    let mut missing = if options.check {
        look(root)
    } else {
        browser();
        prepare(root)
    };
    if !options.check {
        told(helm::complete(root));
        told(workload_api::complete(root));
    }
    let of_browser = packages::missing(|need| need == Need::Browser);
    missing.packages.extend(of_browser);
    let lacks_helm = helm::is_missing(root);
    let lacks_workload_api = workload_api::is_missing(root);
    if missing.is_empty() && !lacks_helm && !lacks_workload_api {
        println!("nothing is missing");
        return Ok(());
    }
    explain(&missing);
    if lacks_helm {
        eprintln!(
            "    missing  {:<26} for the tests: renders the charts; `cargo xtask setup` builds it with Go (https://go.dev/dl)",
            helm::HELM
        );
    }
    if lacks_workload_api {
        eprintln!(
            "    missing  {:<26} for the tests: gives proxies SPIFFE identities; `cargo xtask setup` builds it with Go (https://go.dev/dl)",
            workload_api::WORKLOAD_API
        );
    }
    bail!("this machine lacks something; see above")
}

/// Installs missing dependencies where possible. Explains and returns the ones that remain; an
/// error means that the workspace cannot be built.
pub(crate) fn ready(root: &Path) -> anyhow::Result<Missing> {
    let missing = prepare(root);
    if !missing.is_empty() {
        explain(&missing);
    }
    if missing.stops_the_build() {
        bail!("this machine cannot build the mesh yet; see above");
    }
    Ok(missing)
}

/// Installs the dependencies of the tests in a browser, where possible. `ready` does not, because
/// they are large and only one stage of `test` needs them. One by one, because not every
/// distribution has all.
pub(crate) fn browser() {
    if !workspace::is_root() || !apt::is_here() {
        return;
    }
    for package in packages::missing(|need| need == Need::Browser) {
        told(apt::install(&[package]));
    }
}

/// Builds Helm for the tests of the charts, if the machine has none and has Go. `ready` does not,
/// because only tests need it and it takes minutes.
pub(crate) fn helm(root: &Path) {
    told(helm::complete(root));
}

/// Builds the server of the SPIFFE Workload API for the tests of the proxy, if the machine has Go.
pub(crate) fn workload_api(root: &Path) {
    told(workload_api::complete(root));
}

/// Returns the directory of a built Helm.
pub(crate) fn helm_directory(root: &Path) -> Option<PathBuf> {
    helm::directory(root)
}

/// Returns the directories of the programs that are built here, for the `PATH` of tests.
pub(crate) fn directories(root: &Path) -> impl Iterator<Item = PathBuf> {
    helm::directory(root)
        .into_iter()
        .chain(workload_api::directory(root))
}

/// Installs packages that only one task needs. The caller has printed the reason.
pub fn install(packages: &[&str]) -> anyhow::Result<()> {
    if !workspace::is_root() || !apt::is_here() {
        bail!(
            "as root run: apt-get install --yes --no-install-recommends {}",
            packages.join(" ")
        );
    }
    apt::install_names(packages)
}

fn look(root: &Path) -> Missing {
    Missing {
        packages: packages::missing(|need| need != Need::Browser),
        components: components::missing(),
        bpf: bpf::missing(root).map(|what| what.reason()),
    }
}

/// Installs all dependencies that it can, and continues after failures, which `explain` reports.
fn prepare(root: &Path) -> Missing {
    told(apt::remove_leftover_policy());
    let wanted = packages::missing(|need| need != Need::Browser);
    if !wanted.is_empty() && workspace::is_root() && apt::is_here() {
        told(apt::install(&wanted));
    }
    for component in components::missing() {
        told(components::add(component));
    }
    told(bpf::complete(root));
    look(root)
}

fn told(result: anyhow::Result<()>) {
    if let Err(error) = result {
        eprintln!("    {error:#}");
    }
}

fn explain(missing: &Missing) {
    for package in &missing.packages {
        eprintln!(
            "    missing  {:<26} for the {}: {}",
            package.name, package.need, package.why
        );
    }
    for component in &missing.components {
        eprintln!(
            "    missing  {component:<26} for the checks: `rustup component add {component}` adds it"
        );
    }
    if let Some(reason) = &missing.bpf {
        eprintln!(
            "    missing  {:<26} for the build: {reason}",
            "BPF tool chain"
        );
    }
    if !missing.packages.is_empty() {
        eprintln!(
            "{}",
            remedy(&missing.packages, apt::is_here(), workspace::is_root())
        );
    }
}

/// Describes how to install missing packages, and which commands work without them.
fn remedy(packages: &[&Package], apt: bool, root: bool) -> String {
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    let names = names.join(" ");
    let mut text = match (apt, root) {
        (true, true) => format!("    `cargo xtask setup` installs {names}"),
        (true, false) => {
            format!("    as root run: apt-get install --yes --no-install-recommends {names}")
        }
        (false, _) => {
            format!("    there is no apt-get here; install what your distribution calls: {names}")
        }
    };
    if packages.iter().all(|package| package.need != Need::Build) {
        text.push_str("\n    meanwhile: `cargo xtask build`, and `cargo xtask test`, whose tests say which program they miss");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(need: Need) -> Package {
        Package {
            name: "wrk",
            proof: packages::Proof::Program("wrk"),
            need,
            why: "a reason",
            service: None,
        }
    }

    #[test]
    fn setup_without_root_prints_exact_command() {
        let text = remedy(&[&package(Need::Test)], true, false);
        assert!(
            text.contains("as root run: apt-get install --yes --no-install-recommends wrk"),
            "{text}"
        );
        assert!(text.contains("meanwhile"), "{text}");
    }

    #[test]
    fn missing_build_package_is_not_optional() {
        assert!(!remedy(&[&package(Need::Build)], true, false).contains("meanwhile"));
    }

    #[test]
    fn missing_test_program_does_not_fail_setup() {
        let wrk = Box::leak(Box::new(package(Need::Test)));
        let missing = Missing {
            packages: vec![wrk],
            ..Missing::default()
        };
        assert!(!missing.stops_the_build() && !missing.is_empty());
    }
}
