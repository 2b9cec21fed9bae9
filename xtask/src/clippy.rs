//! The clippy stage of `test`: the workspace with its tests, warnings are errors.
//!
//! Every Rust release brings new lints, and rustup installs the newest release. So on a compiler newer than those this
//! repository was checked with, warnings are shown and do not fail: an unchanged commit must not turn red.

use std::{path::Path, process::Command};

use anyhow::bail;

use crate::{
    command::{self, ask},
    workspace,
};

/// The newest `rustc 1.x` whose lints this repository was checked with. Raise it together with the fixes.
const NEWEST_CHECKED: u32 = 99;

pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut command = workspace::cargo(root);
    command.args(["clippy", "--workspace", "--all-targets"]);
    if warnings_are_errors(Path::new("rustc")) {
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

/// Whether this compiler's warnings fail a build.
pub(crate) fn warnings_are_errors(rustc: &Path) -> bool {
    is_checked(&ask(Command::new(rustc).arg("--version")).unwrap_or_default())
}

/// Decides from the output of `rustc --version`; an unknown form is treated as one that was checked.
fn is_checked(version: &str) -> bool {
    let release = version.split_whitespace().nth(1).unwrap_or_default();
    let minor = release
        .strip_prefix("1.")
        .and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    minor.is_none_or(|minor| minor <= NEWEST_CHECKED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_lints_are_forgiven() {
        for (version, expected) in [
            ("rustc 1.95.0 (59807616e 2026-04-14)", true),
            ("rustc 1.99.1 (58cf8f9c3 2026-10-13)", true),
            ("rustc 1.100.0 (abc 2026-12-01)", false),
            ("rustc 1.101.0-nightly (abc 2026-12-01)", false),
            ("", true),
        ] {
            assert_eq!(is_checked(version), expected, "{version}");
        }
    }
}
