//! The clippy stage of `test`: the workspace with its tests, warnings are errors.
//!
//! Every Rust release brings new lints, and rustup installs the newest release. So on a compiler
//! newer than those this repository was checked with, warnings are shown and do not fail: an
//! unchanged commit must not start to fail.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::command::{self, captured_stdout};
use crate::workspace;

/// The newest `rustc 1.x` whose lints the workspace was checked with. Raise it together with the
/// fixes.
const NEWEST_CHECKED: u32 = 95;

pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    command.args(["clippy", "--workspace", "--all-targets"]);
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
