//! Runs the tests of faults one after the other, each once although several faults name it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};
use xtask::{binaries, cluster, command, stage};

use crate::document;
use crate::fault::{Fault, Test};
use crate::outcome::{FaultResult, Outcome, Run, Verdict};
use crate::programs::{Programs, Scope};

/// Where the results of the last run are.
const DIRECTORY: &str = "target/chaos";
/// Set when programs are built with the features of the whole workspace.
const WORKSPACE_VARIABLE: &str = "MESH_TEST_WORKSPACE";
const SEED_VARIABLE: &str = "MESH_TEST_SEED";
const LONG_VARIABLE: &str = "MESH_TEST_LONG";

pub(crate) struct Campaign<'a> {
    pub(crate) root: &'a Path,
    pub(crate) seed: u64,
    pub(crate) long: bool,
}

impl Campaign<'_> {
    pub(crate) fn run(&self, faults: &[&'static Fault]) -> anyhow::Result<Vec<FaultResult>> {
        binaries::build_kernel_programs_for_tests(self.root)?;
        let tests = faults.iter().flat_map(|fault| fault.tests);
        let running: Vec<&Test> = tests.filter(|test| self.obstacle(test).is_none()).collect();
        let scope = Scope::of(running.iter().copied());
        let what = match scope {
            Scope::Workspace => "every program and test",
            Scope::Packages(_) => "the tests",
        };
        let programs = stage::run("build", what, || Programs::build(self.root, &scope))?;
        if running.iter().any(|test| test.place.is_on_cluster())
            && let Some(context) = cluster::given()
        {
            stage::run("images", &format!("into the cluster {context}"), || {
                cluster::load_images(self.root, &context)
            })?;
        }
        let run = Run {
            seed: self.seed,
            day: jiff::Timestamp::now().strftime("%F").to_string(),
            commit: commit(self.root)?,
        };
        let mut known = BTreeMap::new();
        let mut results = Vec::new();
        for fault in faults {
            let mut outcomes = Vec::new();
            for test in fault.tests {
                let outcome = match known.get(test.path) {
                    Some(outcome) => Outcome::clone(outcome),
                    None => self.run_test(&programs, &scope, fault, test)?,
                };
                known.insert(test.path, outcome.clone());
                outcomes.push(outcome);
            }
            results.push(FaultResult {
                fault,
                outcomes,
                run: run.clone(),
            });
        }
        Ok(results)
    }

    fn run_test(
        &self,
        programs: &Programs,
        scope: &Scope,
        fault: &Fault,
        test: &Test,
    ) -> anyhow::Result<Outcome> {
        if let Some(reason) = self.obstacle(test) {
            return Ok(Outcome::skipped(test.path, &reason));
        }
        let mut command = programs.command(test)?;
        command.env(SEED_VARIABLE, self.seed.to_string());
        if *scope == Scope::Workspace {
            command.env(WORKSPACE_VARIABLE, "1");
        }
        if self.long {
            command.env(LONG_VARIABLE, "1");
        }
        let started = Instant::now();
        let name = format!("fault {}", fault.number);
        let mut outcome = None;
        // A test that fails is a result; the stage prints that it failed.
        let _failed = stage::run(&name, test.path, || {
            let finished = command::observe(&name, &mut command, |_| ())?;
            let ended_well = finished.status.success();
            let lines = &finished.lines;
            outcome = Some(Outcome::read(
                test.path,
                lines,
                ended_well,
                started.elapsed(),
            ));
            if !ended_well {
                self.keep_output(test, lines)?;
            }
            anyhow::ensure!(ended_well, "{}", finished.status);
            Ok(())
        });
        outcome.with_context(|| format!("run {}", test.path))
    }

    /// Why the test cannot run, if so.
    fn obstacle(&self, test: &Test) -> Option<String> {
        if test.place.is_on_cluster() && cluster::given().is_none() {
            return Some(format!("no cluster; set {}", cluster::CONTEXT_VARIABLE));
        }
        let is_excluded = test.place.is_long() && !self.long;
        is_excluded.then(|| "takes minutes; give --long".to_owned())
    }

    fn keep_output(&self, test: &Test, lines: &[String]) -> anyhow::Result<()> {
        let (_, name) = test.parts();
        let file = format!("{}.log", name.replace(' ', "-"));
        self.write_file(&file, &(lines.join("\n") + "\n"))
    }

    fn write_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let directory = self.root.join(DIRECTORY);
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(directory.join(name), text))
            .with_context(|| format!("write {DIRECTORY}/{name}"))
    }

    /// Writes the results to target/chaos, and returns them as lines for the terminal.
    pub(crate) fn write(&self, results: &[FaultResult]) -> anyhow::Result<Vec<String>> {
        let raw: Vec<Value> = results.iter().map(raw).collect();
        let text = serde_json::to_string_pretty(&raw).context("write the results as JSON")?;
        self.write_file("results.json", &(text + "\n"))?;
        let mut lines: Vec<String> = results.iter().flat_map(shown).collect();
        let of = |verdict: &str| {
            let same = |result: &&FaultResult| result.verdict() == verdict;
            results.iter().filter(same).count()
        };
        lines.push(format!(
            "{} faults: {} held, {} failed, {} not run; seed {}; {DIRECTORY}/results.json",
            results.len(),
            of("held"),
            of("FAILED"),
            of("not run"),
            self.seed
        ));
        self.write_file("results.txt", &(lines.join("\n") + "\n"))?;
        Ok(lines)
    }
}

/// Returns the commit whose sources the tests are built from, and whether something but the results
/// differs from it. `None` outside a clone.
fn commit(root: &Path) -> anyhow::Result<Option<String>> {
    if !root.join(".git").exists() {
        return Ok(None);
    }
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command::captured_stdout(command.current_dir(root).args(arguments))
            .with_context(|| format!("git {}", arguments.join(" ")))
    };
    let commit = git(&["rev-parse", "--short=8", "HEAD"])?.trim().to_owned();
    let results = format!(":(exclude){}", document::PATH);
    let changes = git(&["status", "--porcelain", "--", ".", &results])?;
    let is_changed = !changes.trim().is_empty();
    Ok(Some(if is_changed {
        commit + " with changes"
    } else {
        commit
    }))
}

/// A line for the fault, and one for each number, failure and skipped test.
fn shown(result: &FaultResult) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>2}  {:<8}{:>6.1} s  {}",
        result.fault.number,
        result.verdict(),
        result.took().as_secs_f64(),
        result.fault.name
    )];
    for outcome in &result.outcomes {
        let (_, name) = outcome.path.split_once("::").unwrap_or(("", outcome.path));
        let notes = outcome.notes.join("; ");
        match outcome.verdict {
            Verdict::Failed => lines.push(format!("      FAILED {}", outcome.path)),
            Verdict::Skipped => lines.push(format!("      skipped {name}: {notes}")),
            Verdict::Passed if !notes.is_empty() => lines.push(format!("      {name}: {notes}")),
            Verdict::Passed => (),
        }
    }
    lines
}

fn raw(result: &FaultResult) -> Value {
    let outcomes = result.outcomes.iter().map(|outcome| {
        json!({
            "test": outcome.path,
            "verdict": format!("{:?}", outcome.verdict).to_lowercase(),
            "seconds": outcome.took.as_secs_f64(),
            "notes": outcome.notes,
        })
    });
    json!({
        "fault": result.fault.number,
        "name": result.fault.name,
        "verdict": result.verdict(),
        "seed": result.run.seed,
        "day": result.run.day,
        "commit": result.run.commit,
        "tests": outcomes.collect::<Vec<_>>(),
    })
}
