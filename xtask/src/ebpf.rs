//! `cargo xtask ebpf`: builds the kernel programs, which have a workspace, a compiler and a linker
//! of their own, and copies the object to where mesh-agent's build script embeds it from. `test`
//! and `build` call it too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::bpf_toolchain::{self, Compiler};
use crate::{clippy, command, workspace};

const TARGET: &str = "bpfel-unknown-none";

/// The newest `rustc 1.x` whose warnings the kernel programs were checked with: Debian's.
const NEWEST_CHECKED: u32 = 96;

/// Leaves the blocks of the code in another order, which gives other instructions for the same
/// sources. Tests replace the programs with these under load. The verifier of Linux 6.1 accepts
/// them. It would not accept less optimised programs: it refuses a loop whose last instruction is
/// not a jump.
const OTHER_ORDER: &str = "-C link-arg=--llvm-args=-disable-block-placement";

/// Builds the kernel programs for pods and, in another object, for systemd units. Returns the path
/// of the former.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let machine = Variant {
        features: &["machine"],
        ..Variant::default()
    };
    build_as(root, "mesh-ebpf-machine.o", &machine)?;
    build_as(root, "mesh-ebpf.o", &Variant::default())
}

/// Builds the variant with other instructions for the tests of upgrades. The agent never embeds it.
pub(crate) fn build_other(root: &Path) -> anyhow::Result<PathBuf> {
    let other = Variant {
        target_dir: "mesh-ebpf/target/other",
        flags: OTHER_ORDER,
        ..Variant::default()
    };
    build_as(root, "mesh-ebpf-other.o", &other)
}

/// What one object differs from others in.
struct Variant {
    target_dir: &'static str,
    features: &'static [&'static str],
    flags: &'static str,
}

impl Default for Variant {
    fn default() -> Self {
        Self {
            target_dir: "mesh-ebpf/target",
            features: &[],
            flags: "",
        }
    }
}

fn build_as(root: &Path, name: &str, variant: &Variant) -> anyhow::Result<PathBuf> {
    let Some(compiler) = bpf_toolchain::compiler() else {
        bail!("there is no compiler for BPF on this machine; `cargo xtask setup` installs one");
    };
    let Some(linker) = bpf_toolchain::linker(root, &compiler) else {
        bail!(
            "there is no bpf-linker {} on this machine; `cargo xtask setup` builds it",
            bpf_toolchain::LINKER_VERSION
        );
    };
    let target_dir = root.join(variant.target_dir);
    compile(root, &compiler, &linker, variant)?;
    let object = root.join("target/bpf").join(name);
    publish(&target_dir.join(TARGET).join("release/mesh-ebpf"), &object)?;
    Ok(object)
}

fn compile(
    root: &Path,
    compiler: &Compiler,
    linker: &Path,
    variant: &Variant,
) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    command
        .args([
            "build",
            "--release",
            "--locked",
            "--manifest-path",
            "mesh-ebpf/Cargo.toml",
            "--target",
            TARGET,
        ])
        .arg("--target-dir")
        .arg(root.join(variant.target_dir))
        .arg("--features")
        .arg(variant.features.join(","))
        .env("RUSTC", &compiler.rustc)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        .env(
            "CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS",
            flags(root, compiler, variant.flags)?,
        );
    if compiler.build_core {
        command
            .args(["-Z", "build-std=core"])
            .env("RUSTC_BOOTSTRAP", "1");
    } else {
        // aya-ebpf and the programs use one unstable feature, inline assembly.
        command.env("RUSTC_BOOTSTRAP", "aya_ebpf,mesh_ebpf");
    }
    command::run("ebpf", &mut command)
}

/// BTF needs the debug information of the compiler and the linker's option; aya-ebpf wants to know
/// whose registers a program sees. There is no clippy for this target, so the compiler's own
/// warnings are errors here.
fn flags(root: &Path, compiler: &Compiler, further_flags: &str) -> anyhow::Result<String> {
    let arch = std::env::consts::ARCH;
    let warnings = if clippy::warnings_are_errors(&compiler.rustc, NEWEST_CHECKED) {
        " -D warnings"
    } else {
        ""
    };
    // The object names the files of its sources, for the verifier's messages.
    let paths = workspace::mapping_flags(
        "--remap-path-prefix=",
        &workspace::mapped_directories(root)?,
    );
    Ok(format!(
        "-C debuginfo=2 -C link-arg=--btf --cfg bpf_target_arch=\"{arch}\" {paths}{warnings} {further_flags}"
    ))
}

/// Copies the object when it changed, so that an unchanged one rebuilds nothing.
fn publish(built: &Path, object: &Path) -> anyhow::Result<()> {
    let content = fs::read(built).with_context(|| format!("read {}", built.display()))?;
    if fs::read(object).is_ok_and(|published| published == content) {
        return Ok(());
    }
    let directory = object.parent().context("the object is in a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    fs::write(object, content).with_context(|| format!("write {}", object.display()))
}
