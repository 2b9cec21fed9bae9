//! Which tests run, and how: the host builds the test programs and writes the plan, the virtual
//! machine follows it.
//!
//! The subset depends on the kernel: the choice of a tier with the self-test, the kernel programs
//! (`mesh-agent/tests/privileged`), the agent with its packet filters (`mesh-agent/tests/node`),
//! and redirection as applications observe it (`tests/it/redirect`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use mesh_core::node::Tier;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtask::{binaries, command, stage, workspace};

use crate::initramfs::{PROGRAMS, THIS};

/// The main file and the name of a test program, and how names of its tests in the subset begin.
const SUITES: [(&str, &str, &str); 3] = [
    ("mesh-agent/tests/privileged/main.rs", PRIVILEGED, ""),
    ("mesh-agent/tests/node/main.rs", "node", ""),
    ("tests/it/main.rs", IT, "redirect::"),
];
const PRIVILEGED: &str = "privileged";
const IT: &str = "it";
/// In these two programs, the tests that need no kernel programs have a name with one of these
/// parts. The tests of the third one find out themselves.
const WITHOUT_PROGRAMS: [&str; 4] = [
    "agent chooses",
    "_on_nft_tier",
    "_on_iptables_tier",
    "init_programs::",
];

#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) tests: Vec<Test>,
    /// The directory of the programs that tests start.
    pub(crate) programs: PathBuf,
    /// The tier that the agent must choose.
    pub(crate) tier: Tier,
}

/// A test, which runs as a process of its own: one that ends the program takes no other with it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) program: PathBuf,
    pub(crate) name: String,
    /// Where cargo runs the program.
    pub(crate) directory: PathBuf,
}

impl Test {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--exact", &self.name, "--nocapture"])
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// Builds the tests and the programs that they start, and selects the subset's tests whose name
/// contains the filter and that a kernel with this tier can run.
pub(crate) fn build(root: &Path, filter: Option<&str>, tier: Tier) -> anyhow::Result<Plan> {
    binaries::build_kernel_programs_for_tests(root)?;
    let messages = stage::run("build", "the tests and the programs", || {
        let mut cargo = workspace::cargo(root);
        cargo.args(["build", "--workspace"]);
        for name in PROGRAMS.into_iter().chain([THIS]) {
            cargo.args(["--bin", name]);
        }
        for (_, name, _) in SUITES {
            cargo.args(["--test", name]);
        }
        let cargo = cargo.arg("--message-format=json-render-diagnostics");
        let finished = command::observe("cargo build", cargo, |_| ())?;
        if !finished.status.success() {
            bail!("`{}`: {}", command::shown(cargo), finished.status);
        }
        Ok(finished.lines)
    })?;
    let messages = messages.iter();
    let messages: Vec<Value> = messages
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut tests = Vec::new();
    for (source, suite_name, start) in SUITES {
        let found = messages
            .iter()
            .find_map(|message| suite(message, &root.join(source)));
        let (program, directory) =
            found.with_context(|| format!("cargo built no test program of {source}"))?;
        let mut names = names(&program)?;
        names.retain(|name| name.starts_with(start));
        if names.is_empty() {
            bail!("{source} has no test whose name begins with `{start}`");
        }
        for name in names {
            let is_wanted = filter.is_none_or(|part| name.contains(part));
            if is_wanted && can_run(suite_name, &name, tier) {
                tests.push(Test {
                    program: program.clone(),
                    name,
                    directory: directory.clone(),
                });
            }
        }
    }
    let executable = |message: &Value| Some(PathBuf::from(message["executable"].as_str()?));
    let is_agent = |path: &PathBuf| path.ends_with("mesh-agent");
    let agent = messages.iter().filter_map(executable).find(is_agent);
    let programs = agent.as_deref().and_then(Path::parent);
    let programs = programs.context("cargo built no mesh-agent")?.to_owned();
    Ok(Plan {
        tests,
        programs,
        tier,
    })
}

/// Returns whether a test of the subset works on a kernel whose best tier is this.
fn can_run(suite: &str, name: &str, tier: Tier) -> bool {
    let needs_programs = [PRIVILEGED, IT].contains(&suite)
        && !WITHOUT_PROGRAMS.iter().any(|part| name.contains(part));
    tier.uses_ebpf() || !needs_programs
}

/// Returns the test program with this main file and the directory of its package, if the message of
/// cargo is about it.
fn suite(message: &Value, source: &Path) -> Option<(PathBuf, PathBuf)> {
    let is_test = message["profile"]["test"] == true;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let main = Path::new(message["target"]["src_path"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    (main == source).then(|| Some((executable.into(), manifest.parent()?.to_owned())))?
}

fn names(program: &Path) -> anyhow::Result<Vec<String>> {
    let mut list = Command::new(program);
    list.args(["--list", "--format", "terse"]);
    let listed = command::captured_stdout(&mut list)
        .with_context(|| format!("{} does not list its tests", program.display()))?;
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_program_is_found_by_its_main_file() {
        let message = serde_json::json!({
            "manifest_path": "/src/tests/Cargo.toml",
            "target": {"src_path": "/src/tests/it/main.rs"},
            "profile": {"test": true},
            "executable": "/target/debug/deps/it-1",
        });
        let found = suite(&message, Path::new("/src/tests/it/main.rs"));
        assert_eq!(
            found,
            Some(("/target/debug/deps/it-1".into(), "/src/tests".into()))
        );
        let of_other_package = Path::new("/src/mesh-proxy/tests/it/main.rs");
        assert_eq!(suite(&message, of_other_package), None);
    }

    #[test]
    fn kernel_without_programs_runs_tests_of_packet_filters() {
        let check = |suite, name, on_nft| {
            assert!(can_run(suite, name, Tier::Full), "{name}");
            assert_eq!(can_run(suite, name, Tier::Nft), on_nft, "{name}");
        };
        check(PRIVILEGED, "a pod may fail open", false);
        check(PRIVILEGED, "the agent chooses the best tier", true);
        check("node", "daemon::any", true);
        check(IT, "redirect::redirection_cases_hold_on_full_tier", false);
        check(IT, "redirect::redirection_cases_hold_on_nft_tier", true);
    }
}
