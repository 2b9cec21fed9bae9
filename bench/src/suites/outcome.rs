//! The outcome of a suite in one position.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::testbed::process::Process;

/// Maximum number of failed cases printed to the terminal.
const SHOWN: usize = 20;

/// The cases of one run.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) cases: Vec<Case>,
    /// The suite's own report.
    pub(crate) file: PathBuf,
    /// A remark that is printed even if no case failed.
    pub(crate) note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// The suite's message for the case.
    pub(crate) message: String,
}

/// Runs the program of `suite`, which writes its report to `file`. Returns the report, and exit
/// status with output for error messages.
pub(super) fn report(
    suite: &str,
    name: &str,
    command: &mut Command,
    file: &Path,
) -> anyhow::Result<(String, String)> {
    // A report of an earlier run must not be read.
    let _removed = fs::remove_file(file);
    // The exit status is an error if a case failed; the report is authoritative.
    let (status, output) = Process::start(name, command)?.finish()?;
    let message = format!("{status}\n{output}");
    let report =
        fs::read_to_string(file).with_context(|| format!("{suite} wrote no report: {message}"))?;
    Ok((report, message))
}

impl Outcome {
    /// Creates an outcome without a note.
    pub(crate) fn new(cases: Vec<Case>, file: PathBuf) -> Self {
        Self {
            cases,
            file,
            note: None,
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.cases.iter().all(|case| case.passed)
    }

    /// Adds the cases that ran against the server alone and are missing here, as failed.
    pub(super) fn with_missing_cases_failed(mut self, alone: &Self) -> Self {
        let here: BTreeSet<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        let missing = alone.cases.iter();
        let missing = missing.filter(|case| !here.contains(case.name.as_str()));
        let missing: Vec<Case> = missing
            .map(|case| Case {
                passed: false,
                message: "was not run".to_owned(),
                ..case.clone()
            })
            .collect();
        self.cases.extend(missing);
        self
    }

    /// A case passes if its outcome is the same as with the server alone, whether that was a
    /// success or not.
    pub(super) fn compared_with_direct(self, alone: &Self) -> Self {
        let mut outcome = self.with_missing_cases_failed(alone);
        let before: BTreeMap<&str, &str> = alone
            .cases
            .iter()
            .map(|case| (case.name.as_str(), case.message.as_str()))
            .collect();
        for case in &mut outcome.cases {
            let before = before.get(case.name.as_str()).copied();
            case.passed = before == Some(case.message.as_str());
            if !case.passed {
                let before = before.unwrap_or("was not run");
                case.message = format!("{}; direct: {before}", case.message);
            }
        }
        outcome
    }

    /// Prints a summary line and a line for each failed case.
    pub(crate) fn print(&self, root: &Path, suite: &str, position: &str, alone: Option<&Self>) {
        println!("{}", self.line(root, suite, position));
        let failed_alone: BTreeSet<&str> = alone
            .into_iter()
            .flat_map(|alone| alone.failed())
            .map(|case| case.name.as_str())
            .collect();
        for case in self.failed().take(SHOWN) {
            let too = if failed_alone.contains(case.name.as_str()) {
                " (direct too)"
            } else {
                ""
            };
            println!("    {}: {}{too}", case.name, case.message);
        }
        let failed = self.failed().count();
        if failed > SHOWN {
            println!("    and {} more", failed - SHOWN);
        }
    }

    fn line(&self, root: &Path, suite: &str, position: &str) -> String {
        let failed = self.failed().count();
        let passed = self.cases.len() - failed;
        let file = self.file.strip_prefix(root).unwrap_or(&self.file).display();
        let line =
            format!("{suite:<13} {position:<12} {passed:>4} passed {failed:>4} failed  {file}");
        match &self.note {
            Some(note) => format!("{line}  ({note})"),
            None => line,
        }
    }

    fn failed(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| !case.passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(cases: &[(&str, bool, &str)]) -> Outcome {
        let case = |&(name, passed, message): &(&str, bool, &str)| Case {
            name: name.to_owned(),
            passed,
            message: message.to_owned(),
        };
        Outcome {
            cases: cases.iter().map(case).collect(),
            file: "/mesh/target/x.xml".into(),
            note: None,
        }
    }

    #[test]
    fn case_missing_from_run_fails() {
        let alone = outcome(&[("1", true, ""), ("2", true, "")]);
        let through = outcome(&[("1", true, "")]).with_missing_cases_failed(&alone);
        assert!(!through.holds());
        assert_eq!(through.cases[1].message, "was not run");
    }

    #[test]
    fn carried_protocol_case_must_match_direct_outcome() {
        let alone = outcome(&[("1", true, "OK"), ("2", false, "FAILED")]);
        let same =
            outcome(&[("1", true, "OK"), ("2", false, "FAILED")]).compared_with_direct(&alone);
        assert!(same.holds());
        let better = outcome(&[("1", true, "OK"), ("2", true, "OK")]).compared_with_direct(&alone);
        assert_eq!(better.cases[1].message, "OK; direct: FAILED");
        assert!(!better.holds());
        let more = outcome(&[("1", true, "OK"), ("2", false, "FAILED"), ("3", true, "OK")]);
        assert!(!more.compared_with_direct(&alone).holds());
    }

    #[test]
    fn summary_line_has_counts_and_report_file() {
        let line = outcome(&[("1", true, ""), ("2", false, "x")]).line(
            Path::new("/mesh"),
            "h2spec",
            "direct",
        );
        assert_eq!(
            line,
            "h2spec        direct          1 passed    1 failed  target/x.xml"
        );
    }
}
