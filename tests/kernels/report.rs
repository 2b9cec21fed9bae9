//! The reports of the virtual machine: lines of events, and between them the output of tests.

use std::fmt::{self, Display};
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Begins a line that is an event. Tests do not print it.
const MARK: &str = "mesh-kernels-event ";
/// Begins the output of a test that cannot run.
const SKIPPED: &str = "skipped: ";
/// Begins a line about the kernel that belongs into the result.
const FINDING: &str = "kernel: ";

#[derive(Serialize, Deserialize)]
pub(crate) enum Event {
    Begun(usize),
    Ended {
        number: usize,
        /// How it ended, unless it passed.
        outcome: Option<String>,
        millis: u64,
    },
    /// All tests have run.
    Finished,
}

impl Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_not_json| fmt::Error)?;
        write!(formatter, "{MARK}{text}")
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    NotRun,
    Passed,
    Skipped(String),
    Failed(String),
}

struct Row {
    verdict: Verdict,
    millis: u64,
    output: Vec<String>,
}

pub(crate) struct Report<'p> {
    plan: &'p Plan,
    /// The kernel.
    release: &'p str,
    directory: &'p Path,
    rows: Vec<Row>,
    running: Option<usize>,
    ended: bool,
}

impl<'p> Report<'p> {
    pub(crate) fn new(plan: &'p Plan, release: &'p str, directory: &'p Path) -> Self {
        let row = |_| Row {
            verdict: Verdict::NotRun,
            millis: 0,
            output: Vec::new(),
        };
        Self {
            plan,
            release,
            directory,
            rows: plan.tests.iter().map(row).collect(),
            running: None,
            ended: false,
        }
    }

    pub(crate) fn line(&mut self, line: &str) {
        let line = line.trim_end_matches('\r');
        let event = line.strip_prefix(MARK);
        match event.and_then(|text| serde_json::from_str(text).ok()) {
            Some(Event::Begun(number)) => self.running = Some(number),
            Some(Event::Ended {
                number,
                outcome,
                millis,
            }) => {
                self.running = None;
                if let Some(row) = self.rows.get_mut(number) {
                    row.millis = millis;
                    row.verdict = verdict(outcome, &row.output);
                }
                // For a run that is interrupted. A failure repeats when the run ends.
                let _shown = self.write();
            }
            Some(Event::Finished) => self.ended = true,
            None => {
                let running = self.running.and_then(|number| self.rows.get_mut(number));
                if let Some(row) = running {
                    row.output.push(line.to_owned());
                }
            }
        }
    }

    /// Whether the virtual machine reported that all tests have run.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn has_failed(&self) -> bool {
        let has_run = |row: &Row| matches!(row.verdict, Verdict::Passed | Verdict::Skipped(_));
        !self.ended || !self.rows.iter().all(has_run)
    }

    /// Writes the output of all tests and the table to files, and returns the table, with the
    /// output of failed tests above.
    pub(crate) fn write(&self) -> anyhow::Result<Vec<String>> {
        let shown = self.shown();
        let outputs: Vec<String> = self.outputs(|_| true);
        for (name, lines) in [("results.txt", &shown), ("output.txt", &outputs)] {
            let path = self.directory.join(name);
            fs::write(&path, lines.join("\n") + "\n")
                .with_context(|| format!("write {}", path.display()))?;
        }
        Ok(shown)
    }

    fn shown(&self) -> Vec<String> {
        let release = self.release;
        let mut lines = self.outputs(|row| matches!(row.verdict, Verdict::Failed(_)));
        for (test, row) in self.plan.tests.iter().zip(&self.rows) {
            let (word, note) = match &row.verdict {
                Verdict::NotRun => ("NOT RUN", ""),
                Verdict::Passed => ("passed", ""),
                Verdict::Skipped(reason) => ("skipped", reason.as_str()),
                Verdict::Failed(how) => ("FAILED", how.as_str()),
            };
            let seconds = row.millis / 1000;
            let tenths = row.millis % 1000 / 100;
            let line = format!("{word:<8}{seconds:>5}.{tenths} s  {}  {note}", test.name);
            lines.push(line.trim_end().to_owned());
        }
        let outputs = self.rows.iter().flat_map(|row| &row.output);
        let findings = outputs.filter_map(|line| line.strip_prefix(FINDING));
        lines.extend(findings.map(|finding| format!("{release}: {finding}")));
        let count = |is: fn(&Verdict) -> bool| {
            let rows = self.rows.iter();
            rows.filter(|row| is(&row.verdict)).count()
        };
        lines.push(format!(
            "Linux {release}: {} tests: {} passed, {} failed, {} skipped, {} not run",
            self.rows.len(),
            count(|verdict| *verdict == Verdict::Passed),
            count(|verdict| matches!(verdict, Verdict::Failed(_))),
            count(|verdict| matches!(verdict, Verdict::Skipped(_))),
            count(|verdict| *verdict == Verdict::NotRun),
        ));
        lines
    }

    fn outputs(&self, is_wanted: fn(&Row) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (test, row) in self.plan.tests.iter().zip(&self.rows) {
            if is_wanted(row) {
                lines.push(format!("---- {} ----", test.name));
                lines.extend(row.output.iter().filter(|line| !line.is_empty()).cloned());
            }
        }
        lines
    }
}

fn verdict(outcome: Option<String>, output: &[String]) -> Verdict {
    if let Some(how) = outcome {
        return Verdict::Failed(how);
    }
    let reason = output.iter().find_map(|line| line.strip_prefix(SKIPPED));
    reason.map_or(Verdict::Passed, |reason| {
        Verdict::Skipped(reason.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Test;
    use mesh_core::node::Tier;

    fn plan() -> Plan {
        let test = |name: &str| Test {
            program: "/deps/it".into(),
            name: name.to_owned(),
            directory: "/src".into(),
        };
        Plan {
            tests: ["works", "breaks", "lacks"].map(test).into(),
            programs: "/".into(),
            tier: Tier::Full,
        }
    }

    fn ended(number: usize, outcome: Option<&str>) -> String {
        let outcome = outcome.map(str::to_owned);
        let millis = 1250;
        Event::Ended {
            number,
            outcome,
            millis,
        }
        .to_string()
    }

    fn begun(number: usize) -> String {
        Event::Begun(number).to_string()
    }

    #[test]
    fn failed_test_is_reported_with_its_output() {
        let (plan, directory) = (plan(), tempfile::tempdir().unwrap());
        let mut report = Report::new(&plan, "6.1", directory.path());
        for line in [
            begun(0),
            "kernel: tier full\r".to_owned(),
            ended(0, None),
            begun(1),
            "assertion failed".to_owned(),
            ended(1, Some("exit status: 101")),
            begun(2),
            "skipped: nft is not installed".to_owned(),
            ended(2, None),
            Event::Finished.to_string(),
        ] {
            report.line(&line);
        }
        assert!(report.has_ended() && report.has_failed());
        assert_eq!(
            report.shown(),
            [
                "---- breaks ----",
                "assertion failed",
                "passed      1.2 s  works",
                "FAILED      1.2 s  breaks  exit status: 101",
                "skipped     1.2 s  lacks  nft is not installed",
                "6.1: tier full",
                "Linux 6.1: 3 tests: 1 passed, 1 failed, 1 skipped, 0 not run",
            ]
        );
    }

    #[test]
    fn tests_that_did_not_run_are_failures() {
        let (plan, directory) = (plan(), tempfile::tempdir().unwrap());
        let mut report = Report::new(&plan, "6.1", directory.path());
        report.line(&begun(0));
        report.line(&ended(0, None));
        report.line(&begun(1));
        assert!(report.has_failed() && !report.has_ended());
        let results = fs::read_to_string(directory.path().join("results.txt")).unwrap();
        assert!(
            results.starts_with("passed      1.2 s  works\n"),
            "{results}"
        );
        report.line(&Event::Finished.to_string());
        assert!(report.has_failed(), "two have not run");
    }

    #[test]
    fn run_without_failure_is_a_success() {
        let (plan, directory) = (plan(), tempfile::tempdir().unwrap());
        let mut report = Report::new(&plan, "6.1", directory.path());
        for number in 0..3 {
            report.line(&begun(number));
            report.line(&ended(number, None));
        }
        report.line(&Event::Finished.to_string());
        assert!(!report.has_failed());
    }
}
