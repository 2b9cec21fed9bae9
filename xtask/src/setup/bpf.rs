//! Installs the compiler and the linker of the kernel programs (see `bpf_toolchain`). Used by
//! `setup`.

use std::fs;
use std::os::unix;
use std::path::Path;

use anyhow::Context;

use super::{apt, components};
use crate::bpf_toolchain::{self, Compiler, LINKER_VERSION};
use crate::command::run;
use crate::workspace;

/// Debian's compiler for building browsers, which is newer than `rustc`, and its core library for
/// BPF.
const DEBIAN_PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];

/// The missing part.
#[derive(Debug)]
pub(crate) enum Lack {
    Compiler,
    Linker,
}

impl Lack {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Compiler => format!(
                "no compiler for BPF: as root `apt-get install {}` (Debian), or `rustup component add rust-src`",
                DEBIAN_PACKAGES.join(" ")
            ),
            Self::Linker => format!(
                "no bpf-linker {LINKER_VERSION} that fits the compiler: `cargo xtask setup` builds it"
            ),
        }
    }
}

pub(crate) fn missing(root: &Path) -> Option<Lack> {
    let Some(compiler) = bpf_toolchain::compiler() else {
        return Some(Lack::Compiler);
    };
    bpf_toolchain::linker(root, &compiler)
        .is_none()
        .then_some(Lack::Linker)
}

/// Installs the compiler, then builds the linker against its LLVM.
pub(crate) fn complete(root: &Path) -> anyhow::Result<()> {
    if bpf_toolchain::compiler().is_none() {
        install_compiler()?;
    }
    match bpf_toolchain::compiler() {
        Some(compiler) if bpf_toolchain::linker(root, &compiler).is_none() => {
            build_linker(root, &compiler)
        }
        _ => Ok(()),
    }
}

fn install_compiler() -> anyhow::Result<()> {
    if workspace::is_root() && apt::is_here() && apt::offers(DEBIAN_PACKAGES[1])? {
        for package in DEBIAN_PACKAGES {
            eprintln!("    installing  {package:<26} for the build: compiles the kernel programs");
        }
        match apt::install_names(&DEBIAN_PACKAGES) {
            Ok(()) => return Ok(()),
            // rustc-web conflicts with Debian's rustc and rustup packages, which are kept.
            Err(error) => eprintln!("    {error:#}"),
        }
    }
    if workspace::find_program("rustup").is_some() {
        eprintln!(
            "    no Debian compiler for BPF here: rustup's stable compiler builds the kernel programs' core library itself"
        );
        components::add("rust-src")?;
    }
    Ok(())
}

fn build_linker(root: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let tools = workspace::tools(root);
    eprintln!(
        "    installing  {:<26} for the build: links the kernel programs; built against {} (about a minute)",
        format!("bpf-linker {LINKER_VERSION}"),
        compiler.llvm.display()
    );
    let prefix = tools.join("llvm");
    point_at_llvm(&prefix, &compiler.llvm)?;
    let mut command = workspace::cargo(root);
    command
        .args([
            "install",
            "bpf-linker",
            "--version",
            LINKER_VERSION,
            "--locked",
            "--force",
            "--no-default-features",
        ])
        .args(["--features", &format!("llvm-{}", compiler.llvm_major)])
        .arg("--root")
        .arg(&tools)
        .env("LLVM_PREFIX", prefix)
        // Optimising the code around LLVM would double the build time.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    run("bpf-linker", &mut command).context("build bpf-linker")
}

/// Makes the directory that bpf-linker's build expects of an LLVM installation: one shared library
/// under the name that linking asks for and the name that loading asks for. Debian's llvm-dev
/// package would bring it with 600 MB.
fn point_at_llvm(prefix: &Path, library: &Path) -> anyhow::Result<()> {
    let directory = prefix.join("lib");
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let name = library.file_name().context("the LLVM library has a name")?;
    for link in [directory.join("libLLVM.so"), directory.join(name)] {
        unix::fs::symlink(library, &link).with_context(|| format!("create {}", link.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_library_is_linked_under_both_names() {
        let directory = std::env::temp_dir().join(format!("xtask-llvm-{}", std::process::id()));
        let library = directory.join("libLLVM.so.22.1");
        fs::create_dir_all(&directory).expect("a scratch directory");
        fs::write(&library, "llvm").expect("a scratch file");
        for _again in 0..2 {
            point_at_llvm(&directory.join("prefix"), &library).expect("links are made");
        }
        for name in ["libLLVM.so", "libLLVM.so.22.1"] {
            assert_eq!(
                fs::read_to_string(directory.join("prefix/lib").join(name))
                    .ok()
                    .as_deref(),
                Some("llvm")
            );
        }
        fs::remove_dir_all(&directory).expect("the scratch directory is ours");
    }
}
