//! Locates the checkout, cargo and programs on this machine, and checks for root.

use std::env;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

/// Folders that hold programs but are missing from the `PATH` of ordinary users on Debian.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Returns the root of the checkout that this program was started from.
pub fn root() -> anyhow::Result<PathBuf> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = manifest
        .parent()
        .context("find the directory above xtask")?;
    Ok(root.to_path_buf())
}

/// Returns the cargo that runs xtask, so that every stage uses one toolchain.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Programs that xtask itself builds (bpf-linker, cargo-deny): in the checkout, so that the user's
/// own cargo home stays as it is and removing the checkout removes them.
pub(crate) fn tools(root: &Path) -> PathBuf {
    root.join("target/tools")
}

/// The directories of this machine whose names compilers write into programs, each with the name to
/// write instead, so that the same sources give the same bytes in any of them. A later one counts
/// before an earlier one that it is in.
pub(crate) fn mapped_directories(root: &Path) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let cargo_home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    Ok(vec![(cargo_home, "/cargo"), (root.to_path_buf(), "/mesh")])
}

/// Returns the compiler options that map these directories; `option` is the prefix of each.
pub(crate) fn mapping_flags(option: &str, directories: &[(PathBuf, &str)]) -> String {
    let flags = directories
        .iter()
        .map(|(directory, name)| format!("{option}{}={name}", directory.display()));
    flags.collect::<Vec<_>>().join(" ")
}

/// Finds a program as a shell would, system directories included.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns whether this process runs as root, from the owner of its /proc directory.
pub fn is_root() -> bool {
    Path::new("/proc/self")
        .metadata()
        .is_ok_and(|found| found.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program"), None);
    }

    #[test]
    fn file_without_execute_permission_is_not_executable() {
        assert!(!is_executable(Path::new("/etc/passwd")));
        assert!(!is_executable(Path::new("/usr")));
    }

    #[test]
    fn path_prefixes_are_mapped_in_order() {
        let directories = [
            (PathBuf::from("/src"), "/mesh"),
            (PathBuf::from("/src/target"), "/mesh/target"),
        ];
        assert_eq!(
            mapping_flags("-ffile-prefix-map=", &directories),
            "-ffile-prefix-map=/src=/mesh -ffile-prefix-map=/src/target=/mesh/target"
        );
    }

    #[test]
    fn workspace_root_has_manifest() {
        let root = root().expect("the test runs in a checkout");
        assert!(root.join("xtask/Cargo.toml").is_file());
    }
}
