//! The inventory of an image (CycloneDX 1.6): every crate or Go module linked into its programs,
//! and every package of the machine that something in it is from.
//!
//! `cargo tree` lists the linked crates, for all packages together, as they are built: with the
//! features of this one build. `cargo metadata` also lists crates that only unused features need.
//! Licences, checksums and sources come from the metadata. Procedural macros and build scripts run
//! while building and are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, TargetKind};
use serde_json::{Value, json};

use super::debian;
use super::go::Module;
use super::origin::Origin;
use crate::command::captured_stdout;
use crate::workspace;

/// Path of the SBOM in an image.
pub(crate) const PATH: &str = "usr/share/doc/mesh/sbom.cdx.json";

/// The package of the kernel programs, which has a workspace of its own.
const KERNEL_PROGRAMS: &str = "mesh-ebpf";

/// A workspace, the platform that it is built for (none means this machine's), and the packages of
/// it that are built together.
struct Workspace {
    manifest: &'static str,
    platform: Option<&'static str>,
    packages: &'static [&'static str],
}

const WORKSPACES: [Workspace; 2] = [
    Workspace {
        manifest: "Cargo.toml",
        platform: None,
        packages: &[
            "mesh-agent",
            "mesh-control-plane",
            "mesh-proxy",
            "mesh-viz",
            "meshctl",
        ],
    },
    Workspace {
        manifest: "mesh-ebpf/Cargo.toml",
        platform: Some("bpfel-unknown-none"),
        packages: &[KERNEL_PROGRAMS],
    },
];

pub(crate) struct Inventory {
    /// By cargo's identifier.
    crates: BTreeMap<String, Crate>,
    /// By package: the names and versions of the crates in its programs, including the package
    /// itself.
    linked: BTreeMap<String, BTreeSet<(String, String)>>,
    /// The version of the compiler, whose standard library is in every program.
    rust: String,
}

#[derive(Debug, Clone)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: Option<String>,
    /// SHA-256 of the crate as the registry serves it.
    pub(crate) checksum: Option<String>,
    /// Where its sources are.
    pub(crate) directory: PathBuf,
    /// Whether it is a crate of this workspace.
    pub(crate) ours: bool,
    /// The identifiers of the crates that are linked with it.
    pub(crate) needs: Vec<String>,
}

impl Inventory {
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let compiler =
            captured_stdout(Command::new("rustc").arg("-vV")).context("rustc does not run")?;
        let field = |name: &str| {
            let mut lines = compiler.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        let host = field("host:").context("rustc does not say its platform")?;
        let rust = field("release:").context("rustc does not say its version")?;
        let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
        let mut linked = BTreeMap::new();
        for workspace in WORKSPACES {
            let manifest = root.join(workspace.manifest);
            let platform = workspace.platform.unwrap_or(&host);
            let metadata = MetadataCommand::new()
                .manifest_path(&manifest)
                .other_options(["--filter-platform".to_owned(), platform.to_owned()])
                .exec()
                .with_context(|| format!("ask cargo about {}", manifest.display()))?;
            let lock = manifest.with_file_name("Cargo.lock");
            let lock =
                fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?;
            for (id, found) in linkable(metadata, &checksums(&lock))? {
                // A package of both workspaces needs the crates that either of them lists.
                let needs = found.needs.clone();
                crates.entry(id).or_insert(found).needs.extend(needs);
            }
            linked.extend(trees(root, &manifest, workspace.packages, platform)?);
        }
        for one in crates.values_mut() {
            one.needs.sort();
            one.needs.dedup();
        }
        Ok(Self {
            crates,
            linked,
            rust,
        })
    }

    /// Every crate in the programs of these packages, ours among them, sorted by name; with the
    /// kernel programs or not.
    pub(crate) fn linked_into(
        &self,
        packages: &[&str],
        kernel_programs: bool,
    ) -> anyhow::Result<Vec<&Crate>> {
        let mut names = packages.to_vec();
        if kernel_programs {
            names.push(KERNEL_PROGRAMS);
        }
        let mut wanted = BTreeSet::new();
        for name in names {
            let linked = self.linked.get(name);
            wanted.extend(linked.with_context(|| format!("no dependencies recorded for {name}"))?);
        }
        let mut linked: BTreeMap<(&str, &str), &Crate> = BTreeMap::new();
        for one in self.crates.values() {
            if wanted.contains(&(one.name.clone(), one.version.clone())) {
                linked.insert((&one.name, &one.version), one);
            }
        }
        Ok(linked.into_values().collect())
    }
}

/// The crates that cargo links into the programs of each package when it builds the packages
/// together.
fn trees(
    root: &Path,
    manifest: &Path,
    packages: &[&str],
    platform: &str,
) -> anyhow::Result<BTreeMap<String, BTreeSet<(String, String)>>> {
    let mut command = workspace::cargo(root);
    command
        .args(["tree", "--manifest-path"])
        .arg(manifest)
        .args(["--target", platform, "--edges", "normal,no-proc-macro"])
        // A crate is listed below each package that it is linked into, not only below the first.
        .args(["--prefix", "none", "--no-dedupe"]);
    for package in packages {
        command.args(["--package", package]);
    }
    let printed = captured_stdout(&mut command).with_context(|| {
        let packages = packages.join(", ");
        format!("cargo cannot tell what {packages} are linked with")
    })?;
    Ok(by_package(&printed))
}

/// The trees that cargo prints, with an empty line between them, by the package at the root of
/// each.
fn by_package(printed: &str) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let trees = printed.split("\n\n").filter_map(|tree| {
        let mut crates = tree.lines().filter_map(name_and_version).peekable();
        let (package, _) = crates.peek()?.clone();
        Some((package, crates.collect()))
    });
    trees.collect()
}

/// A line of `cargo tree`: `hyper v1.12.0`, `mesh-core v0.1.0 (/directory)`, or
/// `hyper v1.12.0 (*)`.
fn name_and_version(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let version = words.next()?.strip_prefix('v')?;
    Some((name.to_owned(), version.to_owned()))
}

/// The crates that cargo resolved, except for crates that only run while building.
fn linkable(
    metadata: Metadata,
    checksums: &BTreeMap<(String, String), String>,
) -> anyhow::Result<BTreeMap<String, Crate>> {
    let resolve = metadata.resolve.context("cargo resolved nothing")?;
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in resolve.nodes {
        let linked = node.deps.into_iter().filter(|dep| {
            let mut kinds = dep.dep_kinds.iter();
            kinds.any(|kind| kind.kind == DependencyKind::Normal)
        });
        needs.insert(node.id.repr, linked.map(|dep| dep.pkg.repr).collect());
    }
    let mut crates = BTreeMap::new();
    for package in metadata.packages {
        let macros = |target: &cargo_metadata::Target| target.kind.contains(&TargetKind::ProcMacro);
        if package.targets.iter().any(macros) {
            continue;
        }
        let version = package.version.to_string();
        let name = package.name.to_string();
        let directory = package
            .manifest_path
            .parent()
            .context("a manifest is in a directory")?;
        let found = Crate {
            checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
            // Old manifests write `/` for `OR`.
            licence: package.license.map(|licence| licence.replace('/', " OR ")),
            directory: directory.into(),
            ours: package.source.is_none(),
            needs: needs.remove(&package.id.repr).unwrap_or_default(),
            name,
            version,
        };
        crates.insert(package.id.repr, found);
    }
    if crates.is_empty() {
        bail!("cargo resolved nothing");
    }
    Ok(crates)
}

/// The checksums of a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut checksums = BTreeMap::new();
    for section in lock.split("[[package]]") {
        let value = |key: &str| {
            section.lines().find_map(|line| {
                let quoted = line.strip_prefix(key)?.strip_prefix(" = ")?;
                Some(quoted.trim_matches('"').to_owned())
            })
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (value("name"), value("version"), value("checksum"))
        {
            checksums.insert((name, version), checksum);
        }
    }
    checksums
}

/// The image or package that an inventory is about.
pub(crate) struct Subject<'a> {
    /// As CycloneDX names it.
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
    pub(crate) description: &'static str,
    pub(crate) licence: &'static str,
}

/// The document. It has no number and no time of its own, so that the same image has the same
/// inventory.
pub(crate) fn document(
    subject: &Subject<'_>,
    crates: &[&Crate],
    packages: &[debian::Package],
    modules: &[Module],
    inventory: &Inventory,
    origin: &Origin,
) -> anyhow::Result<Vec<u8>> {
    let reference = format!("{}@{}", subject.name, origin.version);
    let known: BTreeSet<String> = crates.iter().map(|one| purl(one)).collect();
    let mut components: Vec<Value> = crates.iter().map(|one| component(one)).collect();
    if !crates.is_empty() {
        components.push(json!({
            "type": "library",
            "bom-ref": format!("pkg:generic/rust-std@{}", inventory.rust),
            "name": "rust-std",
            "version": inventory.rust,
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            "purl": format!("pkg:generic/rust-std@{}", inventory.rust),
        }));
    }
    components.extend(packages.iter().map(|package| {
        let purl = deb_purl(package);
        json!({
            "type": "library",
            "bom-ref": purl,
            "name": package.name,
            "version": package.version,
            "purl": purl,
        })
    }));
    components.extend(modules.iter().map(|module| {
        let purl = format!("pkg:golang/{}@{}", module.path, module.version);
        json!({
            "type": "library",
            "bom-ref": purl,
            "name": module.path,
            "version": module.version,
            "purl": purl,
        })
    }));
    let mut dependencies = vec![json!({
        "ref": reference,
        "dependsOn": components.iter().map(|one| one["bom-ref"].clone()).collect::<Vec<_>>(),
    })];
    dependencies.extend(crates.iter().map(|one| {
        let needs = one.needs.iter().filter_map(|id| inventory.crates.get(id));
        let needs = needs.map(purl).filter(|need| known.contains(need));
        let mut needs: Vec<String> = needs.collect();
        needs.sort();
        json!({ "ref": purl(one), "dependsOn": needs })
    }));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": origin.created(),
            "component": {
                "type": subject.kind,
                "bom-ref": reference,
                "name": subject.name,
                "version": origin.version,
                "description": subject.description,
                "licenses": [{ "expression": subject.licence }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    let mut text = serde_json::to_vec_pretty(&document).context("write the inventory")?;
    text.push(b'\n');
    Ok(text)
}

fn component(one: &Crate) -> Value {
    let purl = purl(one);
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": one.name,
        "version": one.version,
        "purl": purl,
    });
    if let Some(licence) = &one.licence {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(checksum) = &one.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// The package URL: scanners look a crate up by it.
fn purl(one: &Crate) -> String {
    let kind = if one.ours { "generic" } else { "cargo" };
    format!("pkg:{kind}/{}@{}", one.name, one.version)
}

fn deb_purl(package: &debian::Package) -> String {
    format!(
        "pkg:deb/debian/{}@{}?arch={}",
        package.name,
        // The only character of Debian's versions that a package URL reserves.
        package.version.replace('+', "%2B"),
        package.architecture
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_parsed_from_cargo_lock() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"c0\"\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        let package = ("a".to_owned(), "1.0.0".to_owned());
        assert_eq!(checksums(lock), [(package, "c0".to_owned())].into());
    }

    fn one(name: &str, ours: bool, needs: &[&str]) -> (String, Crate) {
        let found = Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: Some("MIT".to_owned()),
            checksum: Some("c0".to_owned()),
            directory: PathBuf::new(),
            ours,
            needs: needs.iter().map(|need| (*need).to_owned()).collect(),
        };
        (name.to_owned(), found)
    }

    fn linked(inventory: &Inventory) -> Vec<&Crate> {
        let linked = inventory.linked_into(&["mesh-control-plane"], false);
        linked.expect("the packages are known")
    }

    fn inventory() -> Inventory {
        Inventory {
            crates: BTreeMap::from([
                one("mesh-control-plane", true, &["kube", "mesh-core", "ring"]),
                one("mesh-core", true, &["a-macro"]),
                one("kube", false, &["http"]),
                one("http", false, &[]),
                one("ring", false, &[]),
            ]),
            linked: BTreeMap::from([(
                "mesh-control-plane".to_owned(),
                ["mesh-control-plane", "mesh-core", "kube", "http"]
                    .map(|name| (name.to_owned(), "1.0.0".to_owned()))
                    .into(),
            )]),
            rust: "1.95.0".to_owned(),
        }
    }

    #[test]
    fn sbom_lists_only_linked_crates() {
        let inventory = inventory();
        let linked = linked(&inventory).into_iter();
        let names: Vec<&str> = linked.map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["http", "kube", "mesh-control-plane", "mesh-core"]);
    }

    #[test]
    fn cargo_tree_output_is_parsed() {
        for (line, expected) in [
            ("hyper v1.12.0", Some(("hyper", "1.12.0"))),
            ("hyper v1.12.0 (*)", Some(("hyper", "1.12.0"))),
            (
                "mesh-core v0.1.0 (/src/mesh-core)",
                Some(("mesh-core", "0.1.0")),
            ),
            ("", None),
        ] {
            let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
            assert_eq!(name_and_version(line), expected, "{line}");
        }
    }

    #[test]
    fn cargo_tree_is_split_by_package() {
        let printed = "one v0.1.0 (/src/one)\nhttp v1.5.0\n\ntwo v0.1.0 (/src/two)\nhttp v1.5.0\nkube v4.2.0\n";
        let trees = by_package(printed);
        let names = |package: &str| -> Vec<&str> {
            let crates = trees[package].iter();
            crates.map(|(name, _)| name.as_str()).collect()
        };
        assert_eq!(names("one"), ["http", "one"]);
        assert_eq!(names("two"), ["http", "kube", "two"]);
    }

    #[test]
    fn sbom_dependencies_are_components() {
        let inventory = inventory();
        let subject = Subject {
            kind: "container",
            name: "mesh/controller",
            description: "controllers",
            licence: "Apache-2.0",
        };
        let linked = linked(&inventory);
        let libc = debian::Package {
            name: "libc6-dev".to_owned(),
            version: "2.36-9+deb12u10".to_owned(),
            architecture: "amd64".to_owned(),
        };
        let origin = Origin {
            version: "0.1.0".to_owned(),
            time: 0,
            revision: None,
        };
        let text =
            document(&subject, &linked, &[libc], &[], &inventory, &origin).expect("a document");
        let document: Value = serde_json::from_slice(&text).expect("JSON");
        let list = |value: &Value| value.as_array().cloned().expect("a list");
        let known: Vec<Value> = list(&document["components"])
            .iter()
            .map(|one| one["bom-ref"].clone())
            .collect();
        for purl in [
            "pkg:deb/debian/libc6-dev@2.36-9%2Bdeb12u10?arch=amd64",
            "pkg:cargo/kube@1.0.0",
        ] {
            assert!(known.contains(&json!(purl)), "{purl}");
        }
        for dependency in list(&document["dependencies"]) {
            for need in list(&dependency["dependsOn"]) {
                assert!(known.contains(&need), "{need}");
            }
        }
    }
}
