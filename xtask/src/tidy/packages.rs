//! House rules about packages: the direction of dependencies, the places of external crates, and
//! licences. The tables are the authority for the direction of dependencies; ARCHITECTURE explains
//! it.

use std::path::Path;

use anyhow::Context;
use cargo_metadata::{DependencyKind, MetadataCommand};

use super::Finding;

pub(crate) struct Package {
    name: String,
    /// Relative to the root.
    manifest: String,
    licence: Option<String>,
    dependencies: Vec<Dependency>,
}

pub(crate) struct Dependency {
    name: String,
    /// Whether it is a package of this repository.
    ours: bool,
    /// Only for tests.
    dev: bool,
}

/// Each package and its permitted dependencies in this workspace. Nothing depends on a program, on
/// the tests or on xtask.
#[rustfmt::skip] // a table, one row a line
const DIRECTION: [(&str, &[&str]); 25] = [
    ("mesh-core", &[]),
    ("mesh-planted", &[]),
    ("mesh-http2", &["mesh-planted"]),
    ("mesh-runtime", &["mesh-planted"]),
    ("mesh-simnet", &[]),
    ("mesh-ebpf-common", &[]),
    ("mesh-ebpf", &["mesh-ebpf-common"]),
    ("mesh-api", &["mesh-core"]),
    ("mesh-k8s", &["mesh-core"]),
    ("mesh-objects", &["mesh-core", "mesh-k8s"]),
    ("mesh-test-support", &["mesh-api"]),
    ("mesh-local", &["mesh-core", "mesh-k8s", "mesh-runtime"]),
    ("mesh-agent", &["mesh-core", "mesh-api", "mesh-k8s", "mesh-runtime", "mesh-ebpf-common"]),
    // The last two only with the feature `simulation`.
    ("mesh-proxy", &["mesh-core", "mesh-http2", "mesh-api", "mesh-runtime", "mesh-planted", "mesh-simnet", "mesh-test-support"]),
    // The last one only with the feature `simulation`.
    ("mesh-cluster", &["mesh-core", "mesh-api", "mesh-k8s", "mesh-objects", "mesh-runtime", "mesh-simnet"]),
    ("mesh-control-plane", &["mesh-core", "mesh-api", "mesh-k8s", "mesh-objects", "mesh-runtime", "mesh-cluster"]),
    ("mesh-viz", &["mesh-core", "mesh-api", "mesh-k8s", "mesh-objects", "mesh-runtime", "mesh-cluster"]),
    ("meshctl", &["mesh-core", "mesh-api", "mesh-k8s", "mesh-objects", "mesh-cluster", "mesh-local", "mesh-runtime"]),
    ("mesh-tests", &["mesh-core", "mesh-api", "mesh-k8s", "mesh-local", "mesh-runtime", "mesh-ebpf-common", "mesh-test-support", "xtask"]),
    ("mesh-bench", &["mesh-core", "mesh-api", "mesh-test-support", "xtask"]),
    ("mesh-simulator", &["mesh-local", "mesh-planted", "mesh-proxy", "mesh-runtime", "mesh-simnet", "mesh-test-support", "xtask"]),
    ("mesh-controller-simulator", &["mesh-core", "mesh-api", "mesh-runtime", "mesh-cluster", "mesh-control-plane", "mesh-simnet", "mesh-test-support", "xtask"]),
    ("mesh-fuzz", &["mesh-core", "mesh-proxy", "mesh-test-support"]),
    // It compiles files of other packages.
    ("mesh-models", &["mesh-core", "mesh-ebpf-common", "mesh-http2", "mesh-planted"]),
    ("xtask", &[]),
];

/// Packages that only tests are allowed to use.
const TEST_SUPPORT: &str = "mesh-test-support";

/// External crates that only some packages may name.
#[rustfmt::skip] // a table, one row a line
const CONFINED: [(&str, &[&str]); 14] = [
    ("prometheus", &["mesh-runtime"]),
    ("aya", &["mesh-agent", "mesh-ebpf-common"]),
    ("aya-ebpf", &["mesh-ebpf"]),
    ("aya-log", &["mesh-agent"]),
    ("aya-log-ebpf", &["mesh-ebpf"]),
    ("kube", &["mesh-k8s", "mesh-objects", "mesh-cluster", "mesh-agent", "mesh-control-plane", "mesh-viz", "meshctl", "mesh-tests"]),
    ("gateway-api", &["mesh-k8s"]),
    ("k8s-openapi", &["mesh-k8s", "mesh-cluster", "mesh-agent", "mesh-control-plane", "mesh-viz", "mesh-local", "meshctl", "mesh-tests"]),
    ("linkerd2-proxy-api", &["mesh-api"]),
    ("rustls", &["mesh-proxy", "mesh-cluster", "mesh-control-plane", "mesh-viz", "meshctl", "mesh-bench", "mesh-fuzz", "mesh-test-support"]),
    ("tokio-rustls", &["mesh-proxy", "mesh-cluster", "mesh-agent", "mesh-control-plane", "meshctl", "mesh-bench"]),
    ("aws-lc-rs", &["mesh-proxy", "mesh-cluster", "mesh-agent", "mesh-control-plane", "mesh-viz", "mesh-local"]),
    ("anyhow", &["mesh-agent", "mesh-proxy", "mesh-control-plane", "mesh-viz", "meshctl", "mesh-tests", "mesh-bench", "mesh-simulator", "mesh-controller-simulator", "xtask"]),
    ("cargo_metadata", &["xtask"]),
];

/// External crates that a package must not name, not even for tests of its own, and why.
#[rustfmt::skip] // a table, one row a line
const BARRED: [(&str, &[&str], &str); 6] = [
    ("mesh-core", &["tokio", "hyper", "tonic", "prost", "kube", "linkerd2-proxy-api"], "mesh-core is decisions without I/O, wire or cluster types"),
    ("mesh-ebpf-common", &["tokio", "serde", "thiserror"], "mesh-ebpf-common is also compiled for the kernel"),
    ("mesh-k8s", &["tokio", "hyper"], "mesh-k8s is types and pure functions; who watches or serves does the I/O"),
    ("mesh-objects", &["tokio", "hyper", "tonic", "prost", "linkerd2-proxy-api"], "mesh-objects is records and decisions without I/O or wire types"),
    ("mesh-control-plane", &["tokio-tungstenite", "flate2"], NO_PAGES),
    ("mesh-cluster", &["tokio-tungstenite", "flate2"], NO_PAGES),
];

const NO_PAGES: &str =
    "the processes that hold keys and policy serve no pages; the web server is in mesh-viz";

/// External crates that nothing may name, and their replacement.
#[rustfmt::skip] // a table, one row a line
const BANNED: [(&str, &str); 6] = [
    ("ring", "the crypto provider is aws-lc-rs"),
    ("openssl", "TLS is rustls with aws-lc-rs"),
    ("native-tls", "TLS is rustls with aws-lc-rs"),
    ("serde_yaml", "it is archived; use serde_norway"),
    ("chrono", "use jiff"),
    ("lazy_static", "use std::sync::OnceLock, or better a value that is passed"),
];

/// The kernel programs and the code that they share may be linked by a kernel that asks for a
/// GPL-compatible licence.
const LICENCES: [(&str, &str); 2] = [
    ("mesh-ebpf", "MIT OR GPL-2.0-only"),
    ("mesh-ebpf-common", "MIT OR GPL-2.0-only"),
];
const LICENCE: &str = "Apache-2.0";

/// Reads the manifests of all workspaces. Asks for no dependency graph, so it needs no network.
pub(crate) fn read(root: &Path) -> anyhow::Result<Vec<Package>> {
    let mut packages = Vec::new();
    for manifest in ["Cargo.toml", "mesh-ebpf/Cargo.toml", "models/Cargo.toml"] {
        let manifest = root.join(manifest);
        if manifest.is_file() {
            let mut command = MetadataCommand::new();
            let metadata = command.manifest_path(&manifest).no_deps().exec();
            let metadata = metadata.with_context(|| format!("read {}", manifest.display()))?;
            let read = metadata.packages.into_iter();
            packages.extend(read.map(|package| Package::new(root, package)));
        }
    }
    Ok(packages)
}

impl Package {
    fn new(root: &Path, package: cargo_metadata::Package) -> Self {
        let manifest = package
            .manifest_path
            .strip_prefix(root)
            .unwrap_or(&package.manifest_path)
            .to_string();
        let dependencies = package.dependencies.into_iter();
        let dependencies = dependencies.map(|dependency| Dependency {
            name: dependency.name,
            ours: dependency.path.is_some(),
            dev: dependency.kind == DependencyKind::Development,
        });
        Self {
            name: package.name.to_string(),
            manifest,
            licence: package.license,
            dependencies: dependencies.collect(),
        }
    }

    fn finding(&self, rule: &'static str, advice: String) -> Finding {
        Finding {
            file: self.manifest.clone(),
            line: 1,
            rule,
            advice,
        }
    }
}

/// Reports dependencies between packages in the wrong direction.
pub(crate) fn direction(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let Some((_, allowed)) = DIRECTION.iter().find(|(name, _)| *name == package.name) else {
            let advice = "a new package: give it a line in DIRECTION of xtask/src/tidy/packages.rs and in ARCHITECTURE.md".to_owned();
            findings.push(package.finding("dependency-direction", advice));
            continue;
        };
        let wrong = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.ours && !allowed.contains(&dependency.name.as_str()))
            .filter(|dependency| !(dependency.dev && dependency.name == TEST_SUPPORT));
        findings.extend(wrong.map(|dependency| {
            let name = &dependency.name;
            let advice = format!(
                "{} must not depend on {name}; move what both need to a library below them",
                package.name
            );
            package.finding("dependency-direction", advice)
        }));
    }
    findings
}

/// An external crate is named by few packages, so that replacing it touches few.
pub(crate) fn confined_crates(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let dependencies = package.dependencies.iter();
        for dependency in dependencies.filter(|dependency| !dependency.dev) {
            let confined = CONFINED.iter().find(|(name, _)| *name == dependency.name);
            if let Some((name, allowed)) =
                confined.filter(|(_, allowed)| !allowed.contains(&package.name.as_str()))
            {
                let advice = format!(
                    "{} must not depend on {name}, which ends in {}",
                    package.name,
                    allowed.join(", ")
                );
                findings.push(package.finding("confined-crates", advice));
            }
        }
    }
    findings
}

/// Crates that a package, or all of them, must do without.
pub(crate) fn barred_crates(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let mut barred = BARRED.iter();
            let barred = barred
                .find(|(of, crates, _)| *of == package.name && crates.contains(&name))
                .map(|(_, _, why)| why);
            let banned = BANNED.iter().find(|(banned, _)| *banned == name);
            let why = barred.or(banned.map(|(_, why)| why));
            findings.extend(
                why.map(|why| package.finding("barred-crates", format!("no {name} here: {why}"))),
            );
        }
    }
    findings
}

/// Reports packages without a licence.
pub(crate) fn licences(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let expected = LICENCES
            .iter()
            .find(|(name, _)| *name == package.name)
            .map_or(LICENCE, |(_, licence)| licence);
        if package.licence.as_deref() != Some(expected) {
            findings.push(package.finding("licences", format!("state `license = \"{expected}\"`")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|name| Dependency {
            name: name.trim_start_matches("dev:").to_owned(),
            ours: name.contains("mesh"),
            dev: name.starts_with("dev:"),
        });
        Package {
            name: name.to_owned(),
            manifest: format!("{name}/Cargo.toml"),
            licence: Some(LICENCE.to_owned()),
            dependencies: dependencies.collect(),
        }
    }

    fn advice(findings: &[Finding]) -> Vec<&str> {
        findings
            .iter()
            .map(|finding| finding.advice.as_str())
            .collect()
    }

    #[test]
    fn upward_dependency_is_reported() {
        let packages = [
            package("mesh-api", &["mesh-core"]),
            package("mesh-proxy", &["mesh-api", "tokio"]),
            package("mesh-core", &[]),
        ];
        assert_eq!(direction(&packages), []);
        let packages = [
            package("mesh-core", &["mesh-api"]),
            package("mesh-proxy", &["dev:meshctl"]),
        ];
        assert_eq!(
            advice(&direction(&packages)),
            [
                "mesh-core must not depend on mesh-api; move what both need to a library below them",
                "mesh-proxy must not depend on meshctl; move what both need to a library below them",
            ]
        );
    }

    #[test]
    fn viz_extension_and_controllers_do_not_depend_on_each_other() {
        let packages = [
            package("mesh-viz", &["mesh-cluster", "tokio-tungstenite"]),
            package("mesh-control-plane", &["mesh-cluster"]),
        ];
        assert_eq!(direction(&packages), []);
        assert_eq!(barred_crates(&packages), []);
        let packages = [
            package("mesh-viz", &["mesh-control-plane"]),
            package("mesh-control-plane", &["mesh-viz", "tokio-tungstenite"]),
            package("mesh-cluster", &["mesh-viz", "flate2"]),
        ];
        assert_eq!(direction(&packages).len(), 3);
        assert_eq!(barred_crates(&packages).len(), 2);
    }

    #[test]
    fn unlisted_package_is_reported() {
        assert_eq!(direction(&[package("mesh-new", &[])]).len(), 1);
    }

    #[test]
    fn confined_dependency_is_reported() {
        let packages = [
            package("mesh-runtime", &["prometheus"]),
            package("mesh-core", &["dev:anyhow"]),
        ];
        assert_eq!(confined_crates(&packages), []);
        let packages = [package("mesh-proxy", &["prometheus", "kube"])];
        assert_eq!(confined_crates(&packages).len(), 2);
    }

    #[test]
    fn barred_dependency_is_reported() {
        let packages = [
            package("mesh-core", &["dev:tokio"]),
            package("meshctl", &["tokio", "serde_yaml"]),
        ];
        assert_eq!(
            advice(&barred_crates(&packages)),
            [
                "no tokio here: mesh-core is decisions without I/O, wire or cluster types",
                "no serde_yaml here: it is archived; use serde_norway",
            ]
        );
    }

    #[test]
    fn missing_licence_is_reported() {
        let mut bpf = package("mesh-ebpf", &[]);
        assert_eq!(licences(&[package("mesh-core", &[])]), []);
        assert_eq!(licences(std::slice::from_ref(&bpf)).len(), 1);
        bpf.licence = Some("MIT OR GPL-2.0-only".to_owned());
        assert_eq!(licences(&[bpf]), []);
    }

    #[test]
    fn all_workspace_packages_are_read() {
        let packages =
            read(&crate::workspace::root().expect("a checkout")).expect("readable manifests");
        assert!(
            packages
                .iter()
                .any(|package| package.name == "xtask" && package.manifest == "xtask/Cargo.toml")
        );
    }
}
