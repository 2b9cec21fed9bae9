//! Runs one target: starts one or several fuzzers in parallel, parses their output, and combines
//! their statistics.

use std::path::{Path, PathBuf};
use std::{fmt, fs, thread};

use anyhow::{Context, bail};

use super::program::Program;
use crate::command;

/// Longest input: enough for a message with several chunks or some dozens of frames. Longer ones
/// find little and run slowly.
const MAX_LENGTH: usize = 4096;

/// An input that takes this number of seconds counts as one that never ends. Each takes a
/// millisecond.
const TIMEOUT: usize = 30;

/// Memory limit of the fuzzer; targets that test memory bounds have far lower limits of their own.
const MAX_MEMORY_MB: usize = 2048;

/// How much is run.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// Inputs in all, instead of a time.
    pub(super) runs: Option<u64>,
    pub(super) seconds: u64,
    /// Processes beside each other.
    pub(super) jobs: u64,
}

/// The outcome of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    executions: u64,
    per_second: u64,
    /// Covered edges of the program.
    coverage: u64,
    new_inputs: u64,
    pub(super) findings: Vec<PathBuf>,
    /// Their messages.
    said: Vec<String>,
}

/// Runs `target`; an error means that the fuzzer itself failed.
pub(super) fn target(program: &Program, target: &str, budget: Budget) -> anyhow::Result<Outcome> {
    let (found, artifacts) = (program.found(target), program.artifacts(target));
    for directory in [&found, &artifacts] {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    }
    let one = || -> anyhow::Result<Outcome> {
        let mut command = program.command(target);
        // New inputs are written to the first directory.
        command
            .args([&found, &program.corpus(target)])
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-max_len={MAX_LENGTH}"))
            .arg(format!("-timeout={TIMEOUT}"))
            .arg(format!("-rss_limit_mb={MAX_MEMORY_MB}"))
            // Slow inputs are changed less often: up to half again the executions in the same time.
            .arg("-entropic_scale_per_exec_time=1")
            .arg("-print_final_stats=1");
        match budget.runs {
            Some(runs) => command.arg(format!("-runs={}", runs.div_ceil(budget.jobs))),
            None => command.arg(format!("-max_total_time={}", budget.seconds)),
        };
        let mut outcome = Outcome::default();
        let finished = command::observe(target, &mut command, |line| outcome.line(line))?;
        if !finished.status.success() && outcome.findings.is_empty() {
            for line in &finished.lines {
                eprintln!("{line}");
            }
            bail!(
                "the fuzzer of {target} ended with {} and reported no input",
                finished.status
            );
        }
        Ok(outcome)
    };
    let outcomes = thread::scope(|scope| {
        let others: Vec<_> = (1..budget.jobs).map(|_| scope.spawn(one)).collect();
        let mut outcomes = vec![one()];
        for other in others {
            outcomes.push(match other.join() {
                Ok(outcome) => outcome,
                Err(_panic) => bail!("the thread of a fuzzer of {target} panicked"),
            });
        }
        outcomes.into_iter().collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok(outcomes.into_iter().fold(Outcome::default(), Outcome::and))
}

/// Adds the inputs found that reach something which no kept one does to the kept ones, as few as
/// possible; returns how many.
pub(super) fn keep(program: &Program, target: &str) -> anyhow::Result<usize> {
    let corpus = program.corpus(target);
    let before = count(&corpus)?;
    let mut command = program.command(target);
    command
        .arg("-set_cover_merge=1")
        .arg(format!("-timeout={TIMEOUT}"))
        .args([&corpus, &program.found(target)]);
    command::run(target, &mut command)?;
    Ok(count(&corpus)?.saturating_sub(before))
}

fn count(directory: &Path) -> anyhow::Result<usize> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    Ok(entries.count())
}

impl Outcome {
    /// One line of the fuzzer's.
    fn line(&mut self, line: &str) {
        let number = |text: &str| text.trim().parse().unwrap_or(0);
        if let Some(figure) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = number(figure);
        } else if let Some(figure) = line.strip_prefix("stat::average_exec_per_sec:") {
            self.per_second = number(figure);
        } else if let Some(figure) = line.strip_prefix("stat::new_units_added:") {
            self.new_inputs = number(figure);
        } else if let Some((_, file)) = line.split_once("Test unit written to ") {
            self.findings.push(file.trim().into());
        } else if line.starts_with('#') {
            let mut words = line.split_whitespace();
            if let Some(coverage) = words.by_ref().skip_while(|word| *word != "cov:").nth(1) {
                self.coverage = self.coverage.max(number(coverage));
            }
        } else if self
            .said
            .last()
            .is_some_and(|last| last.contains("panicked at"))
        {
            // The message of a panic is on the following line.
            self.said.push(line.to_owned());
        } else if line.contains("panicked at") || line.starts_with("SUMMARY:") {
            self.said.push(line.to_owned());
        }
    }

    /// Combines the statistics of two parallel processes.
    fn and(mut self, other: Self) -> Self {
        self.executions += other.executions;
        self.per_second += other.per_second;
        self.coverage = self.coverage.max(other.coverage);
        self.new_inputs += other.new_inputs;
        self.findings.extend(other.findings);
        self.said.extend(other.said);
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let findings = match self.findings.len() {
            0 => "no findings".to_owned(),
            1 => "1 FINDING".to_owned(),
            n => format!("{n} FINDINGS"),
        };
        write!(
            f,
            "{} executions, {}/s, {} edges, {} new inputs, {findings}",
            self.executions, self.per_second, self.coverage, self.new_inputs
        )?;
        for line in &self.said {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &str) -> Outcome {
        let mut outcome = Outcome::default();
        for line in lines.lines() {
            outcome.line(line);
        }
        outcome
    }

    #[test]
    fn fuzzer_statistics_are_parsed() {
        let outcome = outcome(
            "INFO: seed corpus: files: 3\n\
             #5\tINITED cov: 11 ft: 12 corp: 3/9b exec/s: 0 rss: 30Mb\n\
             #900\tNEW    cov: 17 ft: 21 corp: 4/12b lim: 4 exec/s: 0 rss: 30Mb L: 3/3\n\
             #1000\tDONE   cov: 17 ft: 21 corp: 4/12b lim: 11 exec/s: 500 rss: 30Mb\n\
             stat::number_of_executed_units: 1000\n\
             stat::average_exec_per_sec:     500\n\
             stat::new_units_added:          1",
        );
        assert_eq!(
            outcome.to_string(),
            "1000 executions, 500/s, 17 edges, 1 new inputs, no findings"
        );
    }

    #[test]
    fn finding_has_artifact_and_reason() {
        let outcome = outcome(
            "thread '<unnamed>' panicked at fuzz/src/lib.rs:1:2:\n\
             the body was changed\n\
             note: run with\n\
             SUMMARY: libFuzzer: deadly signal\n\
             artifact_prefix='x/'; Test unit written to x/crash-1",
        );
        assert_eq!(outcome.findings, [PathBuf::from("x/crash-1")]);
        assert_eq!(
            outcome.said,
            [
                "thread '<unnamed>' panicked at fuzz/src/lib.rs:1:2:",
                "the body was changed",
                "SUMMARY: libFuzzer: deadly signal",
            ]
        );
        assert!(outcome.to_string().contains("1 FINDING\n"));
    }

    #[test]
    fn parallel_process_statistics_are_summed() {
        let half = || Outcome {
            executions: 10,
            per_second: 5,
            coverage: 7,
            ..Outcome::default()
        };
        let both = half().and(half());
        assert_eq!(
            (both.executions, both.per_second, both.coverage),
            (20, 10, 7)
        );
    }
}
