//! The clippy stage of `test`: the workspace with its tests, warnings are errors.
//!
//! Every Rust release brings new lints, and rustup installs the newest release. So on a compiler
//! newer than those this repository was checked with, warnings are shown and do not fail: an
//! unchanged commit must not start to fail.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use cargo_metadata::MetadataCommand;

use crate::command::{self, captured_stdout};
use crate::workspace;

/// The newest `rustc 1.x` whose lints the workspace was checked with. Raise it together with the
/// fixes.
const NEWEST_CHECKED: u32 = 95;

/// Files that decide how every package is compiled or checked.
const SHARED: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", ".cargo/"];

/// Checks the workspace, or the packages that changed since a revision of git.
pub(crate) fn run(root: &Path, since: Option<&str>) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    command.args(["clippy", "--all-targets"]);
    match since.map(|revision| changed_since(root, revision)) {
        None => command.arg("--workspace"),
        Some(changed) => match changed? {
            None => command.arg("--workspace"),
            Some(packages) if packages.is_empty() => {
                eprintln!("    no package has changed");
                return Ok(());
            }
            Some(packages) => command.args(
                packages
                    .iter()
                    .flat_map(|name| ["--package", name.as_str()]),
            ),
        },
    };
    if warnings_are_errors(Path::new("rustc"), NEWEST_CHECKED) {
        command.args(["--", "-D", "warnings"]);
        return command::run("clippy", &mut command);
    }
    let finished = command::observe("clippy", &mut command, |_| ())?;
    for line in finished
        .lines
        .iter()
        .filter(|line| !command::is_cargo_progress(line))
    {
        eprintln!("{line}");
    }
    eprintln!(
        "    this compiler is newer than 1.{NEWEST_CHECKED}, whose lints were checked: its warnings did not fail"
    );
    if finished.status.success() {
        Ok(())
    } else {
        bail!("clippy: {}", finished.status)
    }
}

/// Returns the packages that changed since a revision, `None` for all of them.
fn changed_since(root: &Path, revision: &str) -> anyhow::Result<Option<Vec<String>>> {
    let mut diff = Command::new("git");
    diff.current_dir(root)
        .args(["diff", "--name-only", "--merge-base", revision]);
    let files = captured_stdout(&mut diff)
        .with_context(|| format!("git finds no changes since {revision}; fetch that revision"))?;
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    let packages = metadata.packages.iter().filter_map(|package| {
        let directory = package.manifest_path.parent()?.strip_prefix(root).ok()?;
        Some((format!("{directory}/"), package.name.to_string()))
    });
    let files: Vec<&str> = files.lines().collect();
    Ok(selection(&files, &packages.collect::<Vec<_>>()))
}

/// Selects the packages, given with their directories, that the files belong to. `None` selects all
/// of them. Packages that depend on a changed one are left to the check of the whole workspace.
fn selection(files: &[&str], packages: &[(String, String)]) -> Option<Vec<String>> {
    let is_shared = |file: &&str| SHARED.iter().any(|shared| file.starts_with(shared));
    if files.iter().any(is_shared) {
        return None;
    }
    let is_changed = |directory: &str| files.iter().any(|file| file.starts_with(directory));
    let changed = packages
        .iter()
        .filter(|(directory, _)| is_changed(directory));
    Some(changed.map(|(_, name)| name.clone()).collect())
}

/// Whether this compiler's warnings fail a build that was checked with compilers up to
/// `rustc 1.newest`.
pub(crate) fn warnings_are_errors(rustc: &Path, newest: u32) -> bool {
    is_checked(
        &captured_stdout(Command::new(rustc).arg("--version")).unwrap_or_default(),
        newest,
    )
}

/// Decides from the output of `rustc --version`; an unknown form is treated as one that was
/// checked.
fn is_checked(version: &str, newest: u32) -> bool {
    let release = version.split_whitespace().nth(1).unwrap_or_default();
    let minor = release
        .strip_prefix("1.")
        .and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    minor.is_none_or(|minor| minor <= newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_select_their_packages_and_shared_ones_all() {
        let packages = [("cli/", "meshctl"), ("mesh-core/", "mesh-core")];
        let packages = packages.map(|(directory, name)| (directory.to_owned(), name.to_owned()));
        let selected = |files: &[&str]| selection(files, &packages);
        assert_eq!(selected(&["README.md"]), Some(Vec::new()));
        let changed = selected(&["cli/src/main.rs", "docs/a.md"]);
        assert_eq!(changed, Some(vec!["meshctl".to_owned()]));
        assert_eq!(selected(&["cli/src/main.rs", "Cargo.lock"]), None);
    }

    #[test]
    fn only_unknown_lint_warnings_are_ignored() {
        for (version, expected) in [
            ("rustc 1.95.0 (59807616e 2026-04-14)", true),
            (
                "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)",
                true,
            ),
            ("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)", false),
            ("rustc 1.100.1 (58cf8f9c3 2026-12-13)", false),
            ("", true),
        ] {
            assert_eq!(is_checked(version, 96), expected, "{version}");
        }
    }
}
