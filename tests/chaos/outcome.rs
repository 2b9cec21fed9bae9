//! The outcome of a test and of a fault, from the output of test programs.

use std::time::Duration;

use crate::fault::Fault;

/// The lines that tests print for the campaign (`mesh_test_support::campaign`) and for skipped
/// tests.
const MEASURED: &str = "measured: ";
const SKIPPED: &str = "skipped: ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// The outcome of a test.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) path: &'static str,
    pub(crate) verdict: Verdict,
    /// The counts of load generators; of a skipped test the reason.
    pub(crate) notes: Vec<String>,
    pub(crate) took: Duration,
}

/// The outcomes of a fault's tests.
pub(crate) struct FaultResult {
    pub(crate) fault: &'static Fault,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) run: Run,
}

/// The time of a run, its choices and its sources.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) seed: u64,
    /// Such as `2026-11-26`.
    pub(crate) day: String,
    /// The commit; none outside a clone.
    pub(crate) commit: Option<String>,
}

impl Outcome {
    /// Reads the output of a test program that ran this test only.
    pub(crate) fn read(
        path: &'static str,
        lines: &[String],
        ended_well: bool,
        took: Duration,
    ) -> Self {
        let with_prefix = |prefix: &str| -> Vec<String> {
            let found = lines.iter().filter_map(|line| line.strip_prefix(prefix));
            found.map(str::to_owned).collect()
        };
        let skipped = with_prefix(SKIPPED);
        let (verdict, notes) = if !ended_well {
            (Verdict::Failed, with_prefix(MEASURED))
        } else if skipped.is_empty() {
            (Verdict::Passed, with_prefix(MEASURED))
        } else {
            (Verdict::Skipped, skipped)
        };
        Self {
            path,
            verdict,
            notes,
            took,
        }
    }

    pub(crate) fn skipped(path: &'static str, reason: &str) -> Self {
        Self {
            path,
            verdict: Verdict::Skipped,
            notes: vec![reason.to_owned()],
            took: Duration::ZERO,
        }
    }
}

impl FaultResult {
    pub(crate) fn has_failed(&self) -> bool {
        self.count(Verdict::Failed) > 0
    }

    /// Whether any test has judged the promise.
    pub(crate) fn is_judged(&self) -> bool {
        self.has_failed() || self.count(Verdict::Passed) > 0
    }

    fn count(&self, verdict: Verdict) -> usize {
        let same = |outcome: &&Outcome| outcome.verdict == verdict;
        self.outcomes.iter().filter(same).count()
    }

    pub(crate) fn took(&self) -> Duration {
        self.outcomes.iter().map(|outcome| outcome.took).sum()
    }

    /// The verdict in a word.
    pub(crate) fn verdict(&self) -> &'static str {
        if self.has_failed() {
            "FAILED"
        } else if self.is_judged() {
            "held"
        } else {
            "not run"
        }
    }

    /// The result as the document has it.
    pub(crate) fn summary(&self) -> String {
        let ran = self.count(Verdict::Passed) + self.count(Verdict::Failed);
        let (all, tests) = match self.outcomes.len() {
            1 => (1, "test"),
            all => (all, "tests"),
        };
        let mut text = format!(
            "{}: {}; {ran} of {all} {tests} ran, {:.0} s, seed {}",
            self.run.place(),
            self.verdict(),
            self.took().as_secs_f64(),
            self.run.seed,
        );
        for outcome in &self.outcomes {
            if outcome.verdict == Verdict::Failed {
                let (_, name) = outcome.path.split_once("::").unwrap_or(("", outcome.path));
                text.push_str(&format!("; failed: `{name}`"));
            }
            if outcome.verdict != Verdict::Skipped {
                text.push_str(&joined(&outcome.notes));
            }
        }
        text
    }
}

/// Joins notes; equal ones in succession are counted.
fn joined(notes: &[String]) -> String {
    let groups = notes.chunk_by(|one, next| one == next);
    let parts = groups.filter_map(|same| match same {
        [] => None,
        [note] => Some(format!("; {note}")),
        [note, ..] => Some(format!("; {} × {note}", same.len())),
    });
    parts.collect()
}

impl Run {
    /// The day and the commit, such as `2026-11-26 at 0123abcd`.
    fn place(&self) -> String {
        match &self.commit {
            Some(commit) => format!("{} at {commit}", self.day),
            None => self.day.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault;

    fn outcome(output: &str, ended_well: bool) -> Outcome {
        let lines: Vec<String> = output.lines().map(str::to_owned).collect();
        Outcome::read("a.rs::b", &lines, ended_well, Duration::from_secs(2))
    }

    #[test]
    fn counted_requests_and_reasons_are_read() {
        let passed = outcome("running 1 test\nmeasured: 600 requests, 0 failed\n", true);
        assert_eq!(passed.verdict, Verdict::Passed);
        assert_eq!(passed.notes, ["600 requests, 0 failed"]);
        let skipped = outcome("skipped: needs root\n", true);
        assert_eq!(skipped.verdict, Verdict::Skipped);
        assert_eq!(skipped.notes, ["needs root"]);
        assert_eq!(
            outcome("skipped: needs root\n", false).verdict,
            Verdict::Failed
        );
    }

    #[test]
    fn fault_holds_only_if_a_test_ran_and_none_failed() {
        let of = |outcomes: &[Outcome]| {
            let result = FaultResult {
                fault: fault::all().next().expect("a fault"),
                outcomes: outcomes.to_vec(),
                run: Run {
                    seed: 7,
                    day: "2026-11-26".to_owned(),
                    commit: Some("0123abcd".to_owned()),
                },
            };
            result.summary()
        };
        let passed = outcome("measured: 600 requests, 0 failed\n", true);
        let skipped = outcome("skipped: needs root\n", true);
        let failed = outcome("", false);
        assert_eq!(
            of(&[passed.clone(), skipped.clone()]),
            "2026-11-26 at 0123abcd: held; 1 of 2 tests ran, 4 s, seed 7; 600 requests, 0 failed"
        );
        let repeated = outcome(&"measured: 40 requests\n".repeat(10), true);
        let text = of(&[passed.clone(), repeated]);
        assert!(
            text.ends_with("; 600 requests, 0 failed; 10 × 40 requests"),
            "{text}"
        );
        let mixed = of(&[passed, failed]);
        assert!(mixed.contains(": FAILED; 2 of 2 tests ran"), "{mixed}");
        assert!(mixed.ends_with("; failed: `b`"), "{mixed}");
        assert!(of(&[skipped]).contains(": not run; 0 of 1 test ran"));
    }
}
