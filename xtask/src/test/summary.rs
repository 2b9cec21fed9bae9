//! Reads the output of `cargo test -- --show-output` line by line: counts, reasons for skipped
//! tests, and the output of failures. No I/O.
//!
//! Rust's test harness does not support skipping at run time, so tests print `skipped: <reason>`
//! and return. Such a test counts as skipped, not as passed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const SKIPPED: &str = "skipped: ";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// The reason of each skipped test.
    pub(crate) skipped: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped);
    }

    /// Returns each reason with the number of tests skipped for it.
    pub(crate) fn reasons(&self) -> BTreeMap<&str, usize> {
        let mut reasons = BTreeMap::new();
        for reason in &self.skipped {
            *reasons.entry(reason.as_str()).or_default() += 1;
        }
        reasons
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            self.skipped.len()
        )
    }
}

/// The parsed output of a run of cargo test.
pub(crate) struct Seen {
    pub(crate) tally: Tally,
    pub(crate) failure_output: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Summary {
    tally: Tally,
    failure_output: Vec<String>,
    section: Section,
    /// The skipped tests of the current program.
    skipped_here: BTreeSet<String>,
}

/// The current section of a test program's output.
#[derive(Default, PartialEq, Eq)]
enum Section {
    #[default]
    Progress,
    /// The output of passed tests, with the name of the current one.
    Successes(Option<String>),
    Failures,
}

impl Summary {
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.result(result);
            self.failure_output.push(line.to_owned());
        } else if line == "successes:" {
            self.section = Section::Successes(None);
        } else if line == "failures:" {
            self.section = Section::Failures;
            self.failure_output.push(line.to_owned());
        } else if let Section::Successes(test) = &mut self.section {
            if let Some(name) = line
                .strip_prefix("---- ")
                .and_then(|rest| rest.strip_suffix(" stdout ----"))
            {
                *test = Some(name.to_owned());
            } else if let (Some(name), Some(reason)) = (test, line.strip_prefix(SKIPPED))
                && self.skipped_here.insert(name.clone())
            {
                self.tally.skipped.push(reason.to_owned());
            }
        } else if self.section == Section::Failures || is_worth_reading(line) {
            self.failure_output.push(line.to_owned());
        }
    }

    /// The last line of one test program:
    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`.
    fn result(&mut self, result: &str) {
        let passed = count(result, "passed");
        let ignored = count(result, "ignored");
        self.tally.passed += passed.saturating_sub(self.skipped_here.len());
        self.tally.failed += count(result, "failed");
        // No test is marked `ignore`; if one ever is, it is reported as skipped.
        self.tally
            .skipped
            .extend((0..ignored).map(|_| "marked as ignored".to_owned()));
        self.skipped_here.clear();
        self.section = Section::Progress;
    }

    /// A run that failed without a failed test (a test program crashed or did not compile) counts
    /// as one failure.
    pub(crate) fn finish(mut self, ended_well: bool) -> Seen {
        if !ended_well && self.tally.failed == 0 {
            self.tally.failed = 1;
        }
        Seen {
            tally: self.tally,
            failure_output: self.failure_output,
        }
    }
}

fn count(result: &str, what: &str) -> usize {
    result
        .split([';', '.'])
        .filter_map(|part| part.trim().strip_suffix(what))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

/// Omits passed tests and cargo's progress, which would hide failures.
fn is_worth_reading(line: &str) -> bool {
    let passed =
        line.starts_with("test ") && (line.ends_with("... ok") || line.ends_with("... ignored"));
    let progress = ["Compiling ", "Fresh ", "Finished ", "running "]
        .iter()
        .any(|word| line.trim_start().starts_with(word));
    !passed && !progress && !line.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str, ended_well: bool) -> Seen {
        let mut summary = Summary::default();
        output.lines().for_each(|line| summary.line(line));
        summary.finish(ended_well)
    }

    const TWO_PROGRAMS: &str = "\
     Running unittests src/lib.rs (target/debug/deps/a-1)

running 3 tests
test fast ... ok
test redirects ... ok
test says_more ... ok

successes:

---- redirects stdout ----
preparing
skipped: needs root
skipped: needs root

---- says_more stdout ----
the word skipped: is not at the start


successes:
    fast
    redirects
    says_more

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/it.rs (target/debug/deps/it-2)

running 2 tests
test redirects ... ok
test broken ... FAILED

successes:

---- redirects stdout ----
skipped: no cgroup2


successes:
    redirects

failures:

---- broken stdout ----
thread 'broken' panicked at tests/it.rs:3:5:
skipped: this test failed all the same


failures:
    broken

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.01s
";

    #[test]
    fn tests_that_print_skipped_are_counted_as_skipped() {
        let tally = read(TWO_PROGRAMS, false).tally;
        assert_eq!(tally.to_string(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(
            tally.reasons(),
            BTreeMap::from([("needs root", 1), ("no cgroup2", 1)])
        );
    }

    #[test]
    fn only_output_of_failed_tests_is_kept() {
        let output = read(TWO_PROGRAMS, false).failure_output.join("\n");
        assert!(output.contains("panicked at tests/it.rs:3:5"), "{output}");
        assert!(output.contains("test broken ... FAILED"), "{output}");
        assert!(
            !output.contains("preparing") && !output.contains("test fast"),
            "{output}"
        );
    }

    #[test]
    fn crashed_test_binary_is_a_failure() {
        assert_eq!(read("error: test failed\n", false).tally.failed, 1);
        assert_eq!(read("", true).tally, Tally::default());
    }

    #[test]
    fn ignored_test_is_counted_as_skipped() {
        let tally = read("test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.0s\n", true).tally;
        assert_eq!(tally.to_string(), "2 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn tallies_are_summed() {
        let mut sum = Tally {
            passed: 1,
            failed: 0,
            skipped: vec!["a".into()],
        };
        sum.add(Tally {
            passed: 2,
            failed: 3,
            skipped: vec!["a".into(), "b".into()],
        });
        assert_eq!(sum.to_string(), "3 passed, 3 failed, 3 skipped");
        assert_eq!(sum.reasons(), BTreeMap::from([("a", 2), ("b", 1)]));
    }
}
