//! The dashboard's page: compares its build with its sources, and runs its tests in Chromium.
//!
//! Both need npm's packages. Where Node, Chromium or the registry cannot be had, they are skipped
//! with the reason.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use super::summary::Tally;
use crate::workspace::{self, find_program};
use crate::{command, setup};

/// The errors of npm when it cannot reach a registry, or the registry does not respond.
const UNREACHABLE: [&str; 9] = [
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "ERR_SOCKET_TIMEOUT",
    "code E502",
    "code E503",
];

const PAGE: &str = "viz/web";

const CHROMIUM: &str = "chromium";

/// The name of the skipped tests in the summary.
const BUILD: &str = "the build of the dashboard's page";
const BROWSER: &str = "the dashboard in a browser";

/// Compares `dist` with a build of the sources, which also installs npm's packages, and runs the
/// tests in a browser. The programs of the workspace are built.
pub(super) fn run(root: &Path, tally: &mut Tally) -> anyhow::Result<()> {
    setup::browser();
    if let Some(reason) = missing(&["node", "npm"]) {
        skip(tally, &reason);
        return Ok(());
    }
    let directory = root.join(PAGE);
    match compare(&directory) {
        Ok(None) => tally.passed += 1,
        Ok(Some(reason)) => {
            skip(tally, &reason);
            return Ok(());
        }
        Err(error) => {
            tally.failed += 1;
            return Err(error);
        }
    }
    let Some(browser) = find_program(CHROMIUM) else {
        skip_one(tally, BROWSER, &format!("not installed: {CHROMIUM}"));
        return Ok(());
    };
    browse(&directory, &browser, tally)
}

/// Counts both parts as skipped.
pub(super) fn skip(tally: &mut Tally, reason: &str) {
    skip_one(tally, BUILD, reason);
    skip_one(tally, BROWSER, reason);
}

fn skip_one(tally: &mut Tally, what: &str, reason: &str) {
    tally.skipped.push(format!("{what}: {reason}"));
}

/// Returns which of the programs cannot be found.
fn missing(programs: &[&str]) -> Option<String> {
    let absent = programs.iter().filter(|name| find_program(name).is_none());
    let absent: Vec<&str> = absent.copied().collect();
    (!absent.is_empty()).then(|| format!("not installed: {}", absent.join(", ")))
}

/// Returns why the comparison could not begin, if so. It fails when the build differs.
fn compare(directory: &Path) -> anyhow::Result<Option<String>> {
    let mut command = Command::new("./check-dist.sh");
    let finished = command::observe("page", command.current_dir(directory), |_| ())?;
    if finished.status.success() {
        return Ok(None);
    }
    if let Some(line) = finished.lines.iter().find(|line| is_unreachable(line)) {
        let line = line.trim();
        return Ok(Some(format!("npm cannot install packages: {line}")));
    }
    for line in &finished.lines {
        eprintln!("{line}");
    }
    bail!("{PAGE}/check-dist.sh: {}", finished.status)
}

fn is_unreachable(line: &str) -> bool {
    let is_error = line.starts_with("npm ERR!") || line.starts_with("npm error");
    is_error && UNREACHABLE.iter().any(|code| line.contains(code))
}

fn browse(directory: &Path, browser: &Path, tally: &mut Tally) -> anyhow::Result<()> {
    let mut command = alone("node", workspace::is_root());
    command
        .args(["--test", "--test-reporter=tap", "test/dashboard.test.mjs"])
        .env("CHROMIUM", browser)
        .current_dir(directory);
    let mut seen = Tally::default();
    let finished = command::observe("browser", &mut command, |line| count(line, &mut seen))?;
    let (passed, failed) = (seen.passed, seen.failed);
    tally.add(seen);
    if finished.status.success() && failed == 0 && passed > 0 {
        return Ok(());
    }
    for line in &finished.lines {
        eprintln!("{line}");
    }
    if failed == 0 {
        // A run that ended without a failed test, or without any test, counts as one failure.
        tally.failed += 1;
    }
    bail!("{PAGE}, {BROWSER}: {failed} failed, {}", finished.status)
}

/// Returns a command in a network namespace of its own, if root may make one. Chromium ends its
/// requests with ERR_NETWORK_CHANGED when any interface of its namespace appears or goes, and other
/// tests make interfaces at the same time.
fn alone(program: &str, is_root: bool) -> Command {
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    let set_up = "ip link set lo up && exec \"$@\"";
    command.args(["--net", "sh", "-c", set_up, "sh", program]);
    command
}

/// Reads a line of the Test Anything Protocol, whose last comments have the counts.
fn count(line: &str, tally: &mut Tally) {
    let number = |prefix: &str| line.strip_prefix(prefix)?.trim().parse::<usize>().ok();
    if let Some(passed) = number("# pass ") {
        tally.passed = passed;
    } else if let Some(failed) = number("# fail ").or_else(|| number("# cancelled ")) {
        tally.failed += failed;
    } else if let Some((_, reason)) = line.split_once("# SKIP") {
        skip_one(tally, BROWSER, reason.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_last_comments() {
        let output = "TAP version 13\n    ok 1 - tap shows requests\n    ok 2 - a # SKIP no fonts\nok 1 - dashboard\n1..1\n# tests 5\n# suites 1\n# pass 2\n# fail 1\n# cancelled 1\n# skipped 1\n# todo 0\n";
        let mut tally = Tally::default();
        output.lines().for_each(|line| count(line, &mut tally));
        assert_eq!((tally.passed, tally.failed), (2, 2));
        assert_eq!(tally.skipped, ["the dashboard in a browser: no fonts"]);
    }

    #[test]
    fn only_an_unreachable_registry_is_a_reason_to_skip() {
        for line in [
            "npm ERR! code ENOTFOUND",
            "npm error network request to https://r.example failed, reason: connect ECONNREFUSED",
        ] {
            assert!(is_unreachable(line), "{line}");
        }
        for line in [
            "npm ERR! code EUSAGE",
            "npm error code EINTEGRITY",
            "src/main.tsx: error about ENOTFOUND",
        ] {
            assert!(!is_unreachable(line), "{line}");
        }
    }

    #[test]
    fn program_of_root_sees_the_loopback_interface_alone() {
        if !workspace::is_root() || find_program("ip").is_none() {
            println!("skipped: a network namespace needs root and iproute2");
            return;
        }
        let mut command = alone("ip", true);
        let listed = command::captured_stdout(command.args(["-oneline", "link"]));
        let listed = listed.expect("the list of interfaces");
        assert!(
            listed.lines().all(|line| line.contains("LOOPBACK")),
            "{listed}"
        );
        assert!(listed.contains("LOOPBACK,UP"), "{listed}");
    }

    #[test]
    fn missing_programs_are_named() {
        assert_eq!(missing(&["sh"]), None);
        let reason = missing(&["sh", "no-such-program"]).unwrap();
        assert_eq!(reason, "not installed: no-such-program");
    }
}
