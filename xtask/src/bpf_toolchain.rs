//! Finds the compiler and the linker of the kernel programs. `setup` installs them, `ebpf` uses
//! them.
//!
//! The compiler is Debian's `rustc-web` with the prebuilt core library for BPF where that is
//! installed; elsewhere it is rustup's stable compiler, which builds core from the `rust-src`
//! component. Both bring a shared libLLVM with the BPF target. bpf-linker is built against exactly
//! that library: LLVM must not read bitcode of a newer LLVM.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::captured_stdout;
use crate::workspace;

/// The release that `setup` installs. Another one on the machine is not used: options and BTF
/// output differ.
pub(crate) const LINKER_VERSION: &str = "0.13.0";

/// Where Debian's package puts core and alloc for the kernel.
const DEBIAN_BPF_LIBRARY: &str = "/usr/lib/rustlib/bpfel-unknown-none/lib";
/// Debian's compiler; `rustc` on the `PATH` is usually rustup's.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// A compiler that can emit BPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compiler {
    pub(crate) rustc: PathBuf,
    /// Whether core has to be compiled too (`-Z build-std=core`).
    pub(crate) build_core: bool,
    /// The shared library of the LLVM inside this compiler.
    pub(crate) llvm: PathBuf,
    pub(crate) llvm_major: u32,
}

/// Finds the compiler to use: Debian's first, because its core library is prebuilt.
pub(crate) fn compiler() -> Option<Compiler> {
    debian_compiler().or_else(rustup_compiler)
}

fn debian_compiler() -> Option<Compiler> {
    find_file(Path::new(DEBIAN_BPF_LIBRARY), |name| {
        name.starts_with("libcore-")
    })?;
    let llvm_major = llvm_major(&captured_stdout(Command::new(DEBIAN_RUSTC).arg("-vV"))?)?;
    let library = format!("libLLVM.so.{llvm_major}");
    let llvm = fs::read_dir("/usr/lib")
        .ok()?
        .flatten()
        .find_map(|directory| find_file(&directory.path(), |name| name.starts_with(&library)))?;
    Some(Compiler {
        rustc: DEBIAN_RUSTC.into(),
        build_core: false,
        llvm,
        llvm_major,
    })
}

fn rustup_compiler() -> Option<Compiler> {
    let rustc = workspace::find_program("rustc")?;
    let sysroot =
        PathBuf::from(captured_stdout(Command::new(&rustc).args(["--print", "sysroot"]))?.trim());
    if !sysroot.join("lib/rustlib/src/rust/library/core").is_dir() {
        return None;
    }
    let llvm_major = llvm_major(&captured_stdout(Command::new(&rustc).arg("-vV"))?)?;
    let library = format!("libLLVM.so.{llvm_major}");
    let llvm = find_file(&sysroot.join("lib"), |name| name.starts_with(&library))?;
    Some(Compiler {
        rustc,
        build_core: true,
        llvm,
        llvm_major,
    })
}

/// Finds a bpf-linker that can read the compiler's output: the one `setup` built, or one on the
/// `PATH`.
pub(crate) fn linker(root: &Path, compiler: &Compiler) -> Option<PathBuf> {
    let own = workspace::tools(root).join("bin/bpf-linker");
    own.is_file()
        .then_some(own)
        .into_iter()
        .chain(workspace::find_program("bpf-linker"))
        .find(|linker| {
            captured_stdout(Command::new(linker).arg("--version"))
                .is_some_and(|version| is_our_version(&version))
                && fs::read(linker)
                    .is_ok_and(|program| reads_bitcode_of(&program, compiler.llvm_major))
        })
}

fn is_our_version(output: &str) -> bool {
    output.split_whitespace().last() == Some(LINKER_VERSION)
}

/// Whether the LLVM that the linker was built with is new enough. A statically linked one, as the
/// project's release archives hold, identifies no library; those carry the newest LLVM of their
/// day.
fn reads_bitcode_of(linker: &[u8], llvm_major: u32) -> bool {
    const NAME: &[u8] = b"libLLVM.so.";
    let Some(at) = linker.windows(NAME.len()).position(|window| window == NAME) else {
        return true;
    };
    let digits = linker[at + NAME.len()..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    let major = digits.fold(0_u32, |number, digit| {
        number
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    });
    major >= llvm_major
}

/// The LLVM line of `rustc -vV`: `LLVM version: 22.1.2`.
fn llvm_major(rustc_version: &str) -> Option<u32> {
    rustc_version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?
        .split('.')
        .next()?
        .parse()
        .ok()
}

fn find_file(directory: &Path, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    fs::read_dir(directory)
        .ok()?
        .flatten()
        .find(|entry| entry.file_name().to_str().is_some_and(&wanted))
        .map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_version_is_parsed_from_rustc() {
        let version =
            "rustc 1.95.0 (59807616e 2026-04-14)\nrelease: 1.95.0\nLLVM version: 22.1.2\n";
        assert_eq!(llvm_major(version), Some(22));
        assert_eq!(llvm_major("rustc 1.95.0"), None);
    }

    #[test]
    fn other_linker_version_is_rejected() {
        assert!(is_our_version("bpf-linker 0.13.0\n"));
        assert!(!is_our_version("bpf-linker 0.9.14\n"));
        assert!(!is_our_version(""));
    }

    #[test]
    fn linker_with_older_llvm_is_rejected() {
        assert!(reads_bitcode_of(b"\0libLLVM.so.22.1\0", 22));
        assert!(reads_bitcode_of(b"\0libLLVM.so.23.1\0", 22));
        assert!(!reads_bitcode_of(b"\0libLLVM.so.21.1\0", 22));
        assert!(reads_bitcode_of(b"statically linked", 22));
    }
}
