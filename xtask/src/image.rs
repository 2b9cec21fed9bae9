//! `cargo xtask image`: container images of the mesh, without Docker. Builds the programs, puts
//! each image together from nothing but files of this checkout and of the machine's packages, and
//! writes it as a directory (an OCI layout) and as one tar that `docker load`, `ctr images import`
//! and `kind load image-archive` take. `--push` sends it to a registry, `--check` builds twice.
//!
//! Nothing in an image depends on when, where or by whom it was built: entries are sorted, times
//! are the commit's, owners are numbers, and the paths of this machine are mapped away
//! (`programs`). `test` makes the development images for the end-to-end tests through `from_tests`.

mod blob;
mod contents;
mod debian;
mod elf;
mod go;
mod layer;
mod layout;
mod licences;
pub(crate) mod machine;
mod oci;
mod origin;
mod programs;
mod registry;
mod sbom;
mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::{ebpf, setup, stage};
use contents::{Contents, Tools};
use debian::Package;
use oci::Image;
use origin::Origin;
use programs::Programs;
use sbom::{Inventory, Subject};
use tree::Tree;

pub(crate) use go::prometheus;

pub(crate) use contents::ImageName;

/// Files that are not programs: licences and the SBOM.
const DOCUMENTS: &str = "usr/share/doc/mesh";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ImageOptions {
    /// Images to write; all by default. The programs of all images are built in either case
    pub(crate) images: Vec<ImageName>,
    /// Use the unoptimised programs of the tests: for a cluster on this machine
    #[arg(long)]
    pub(crate) dev: bool,
    /// Use the existing programs in target/debug
    #[arg(long, requires = "dev", conflicts_with = "check")]
    pub(crate) no_build: bool,
    /// Directory for the images [default: target/images/dev or target/images/release]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Also push them to this registry or repository prefix, as in ghcr.io/example
    #[arg(long, value_name = "REGISTRY")]
    pub(crate) push: Option<String>,
    /// Build everything a second time from scratch, and fail unless the images are identical
    #[arg(long)]
    pub(crate) check: bool,
}

pub(crate) fn run(root: &Path, options: &ImageOptions) -> anyhow::Result<()> {
    let names = wanted(&options.images);
    let origin = Origin::read(root)?;
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| default_directory(root, options.dev));
    let programs = if options.no_build {
        Programs::of_tests(root)
    } else {
        build(root, &names, options.dev, &origin)?
    };
    let images = stage::run("images", "layers, inventory, archives", || {
        make(root, &names, &programs, &origin)
    })?;
    if options.check {
        check_again(root, &names, options.dev, &origin, &images)?;
    }
    for image in &images {
        println!("{}", layout::write(&out, image)?.display());
    }
    if !options.dev {
        println!("{}", place_command_line(&programs, &out)?.display());
    }
    if let Some(registry) = &options.push {
        stage::run("push", registry, || {
            registry::push(registry, &out, &images, &origin)
        })?;
    }
    Ok(())
}

/// Builds the programs, with the files that they embed.
fn build(root: &Path, names: &[ImageName], dev: bool, origin: &Origin) -> anyhow::Result<Programs> {
    let missing = stage::run("setup", "what this machine lacks", || setup::ready(root))?;
    match missing.bpf {
        None => {
            stage::run("ebpf", "the kernel programs", || {
                ebpf::build(root).context("build the kernel programs")
            })?;
        }
        Some(reason) if names.contains(&ImageName::Agent) => bail!(
            "the agent embeds the kernel programs, which cannot be built here: {reason}. The other images can: `cargo xtask image proxy controller`"
        ),
        Some(_) => (),
    }
    stage::run("build", "the programs", || {
        Programs::build(root, dev, origin)
    })
}

/// Copies `meshctl` next to the images, for the build machine.
fn place_command_line(programs: &Programs, out: &Path) -> anyhow::Result<PathBuf> {
    let built = programs.command_line();
    let placed = out.join("meshctl");
    fs::copy(&built, &placed)
        .with_context(|| format!("copy {} to {}", built.display(), placed.display()))?;
    Ok(placed)
}

/// The images of the programs that the tests were built with, for a cluster to load. Builds
/// nothing.
pub(crate) fn from_tests(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let programs = Programs::of_tests(root);
    let origin = Origin::read(root)?;
    let out = default_directory(root, true);
    let images = make(root, ImageName::value_variants(), &programs, &origin)?;
    images
        .iter()
        .map(|image| layout::write(&out, image))
        .collect()
}

/// Returns the named images once each, or all images of the mesh.
fn wanted(named: &[ImageName]) -> Vec<ImageName> {
    if named.is_empty() {
        return ImageName::OF_MESH.to_vec();
    }
    let all = ImageName::value_variants().iter().copied();
    all.filter(|name| named.contains(name)).collect()
}

fn default_directory(root: &Path, dev: bool) -> PathBuf {
    root.join("target/images")
        .join(if dev { "dev" } else { "release" })
}

fn make(
    root: &Path,
    names: &[ImageName],
    programs: &Programs,
    origin: &Origin,
) -> anyhow::Result<Vec<Image>> {
    let inventory = Inventory::read(root)?;
    let made = names.iter().map(|name| {
        let contents = Contents::of(*name);
        let tree = files(root, contents, programs, &inventory, origin)
            .with_context(|| format!("put the {name} image together"))?;
        oci::image(contents, &tree, origin, programs.compression())
    });
    made.collect()
}

/// Returns all files of an image.
fn files(
    root: &Path,
    contents: &Contents,
    programs: &Programs,
    inventory: &Inventory,
    origin: &Origin,
) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    for placed in contents.programs {
        let content = programs.content(&placed.program)?;
        tree.add_with_mode(placed.path, content, placed.mode);
    }
    for (path, target) in contents.links {
        tree.add_link(path, target);
    }
    let mut packages = BTreeSet::new();
    if !contents.programs.is_empty() {
        // Static programs hold the C library's code.
        packages.insert(debian::c_library()?);
    }
    packages.extend(match contents.tools {
        Tools::None => BTreeSet::new(),
        Tools::PacketFilters => debian::add_packet_filters(&mut tree)?,
        Tools::Debugging => debian::add_debugging_tools(&mut tree)?,
        Tools::Authorities | Tools::Prometheus => {
            BTreeSet::from([debian::add_authorities(&mut tree)?])
        }
    });
    let mut modules = Vec::new();
    if contents.tools == Tools::Prometheus {
        let prometheus = prometheus(root)?;
        tree.add_program("prometheus", prometheus.program);
        modules = prometheus.modules;
    }
    let packages: Vec<Package> = packages.into_iter().collect();
    for package in &packages {
        let path = format!("usr/share/doc/{}/copyright", package.name);
        tree.add_file(&path, package.copyright()?);
    }
    let crates = inventory.linked_into(&contents.packages(), contents.kernel_programs)?;
    tree.add_file(&format!("{DOCUMENTS}/LICENSE"), licences::ours(root)?);
    let third_parties = licences::third_parties(&crates, &modules)?;
    tree.add_file(&format!("{DOCUMENTS}/THIRD-PARTY-LICENSES"), third_parties);
    let subject = Subject {
        kind: "container",
        name: &contents.name.repository(),
        description: contents.description,
        licence: contents.licence,
    };
    let sbom = sbom::document(&subject, &crates, &packages, &modules, inventory, origin)?;
    tree.add_file(sbom::PATH, sbom);
    Ok(tree)
}

/// Builds the programs a second time from scratch, and compares the resulting images with the first
/// ones.
fn check_again(
    root: &Path,
    names: &[ImageName],
    dev: bool,
    origin: &Origin,
    first: &[Image],
) -> anyhow::Result<()> {
    let again = stage::run("check", "the programs again, from nothing", || {
        Programs::build_from_nothing(root, dev, origin)
    })?;
    let second = make(root, names, &again, origin)?;
    again.remove()?;
    for (first, second) in first.iter().zip(&second) {
        if first.manifest.digest != second.manifest.digest {
            bail!(
                "two builds of the {} image differ: {} and {}",
                first.contents.name,
                first.manifest.digest,
                second.manifest.digest
            );
        }
        eprintln!(
            "    {}: twice {}",
            first.contents.name, first.manifest.digest
        );
    }
    Ok(())
}

/// Recreates a directory, so that it contains no files of an earlier run.
fn empty_directory(directory: &Path) -> anyhow::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))
}
