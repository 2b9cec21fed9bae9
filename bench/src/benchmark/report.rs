//! Reports a run: prints a table per workload, and finally writes the tables, the numbers of all
//! rounds, and a chart to files.

mod chart;
mod document;
mod raw;
mod table;
mod time_shares;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::metric::{Metric, Unit, shown};
use super::profile::Profile;
use super::row::{GoalStatus, Row};
use super::workload::{Goal, Limit, WORKLOADS, Workload};
use super::{Plan, machine, tools};
use crate::testbed::{Cpus, Programs, ProxyPair};

/// The results of a run so far.
pub(super) struct Report {
    machine: Vec<(&'static str, String)>,
    versions: Vec<(&'static str, String)>,
    command: String,
    /// Reasons why the results are not publishable, one sentence each.
    caveats: Vec<&'static str>,
    pub(super) rows: Vec<Measured>,
}

/// A workload and its outcome.
pub(super) struct Measured {
    pub(super) workload: &'static Workload,
    pub(super) outcome: anyhow::Result<Row>,
    pub(super) profile: Option<ProxyPair<Profile>>,
    pub(super) took: Duration,
}

impl Report {
    pub(super) fn new(root: &Path, plan: &Plan, programs: &Programs, cpus: Cpus) -> Self {
        let mut caveats = Vec::new();
        if plan.quick {
            caveats.push("--quick: rounds are too few and too short for a precise comparison.");
        }
        if plan.with_noisy {
            caveats
                .push("--noisy: rounds during which other programs used the machine were counted.");
        }
        Self {
            machine: machine::description(cpus),
            versions: tools::versions(programs, root),
            command: command_line(),
            caveats,
            rows: Vec::new(),
        }
    }

    /// Writes tables and chart into a directory, and the numbers of all rounds into another one:
    /// they are too large to be published in a repository.
    pub(super) fn write(&self, directory: &Path, raw: &Path) -> anyhow::Result<()> {
        for (directory, name, text) in [
            (directory, "results.md", document::text(self)),
            (raw, "results.json", raw::text(self)?),
            (directory, "results.svg", chart::text(self)),
        ] {
            fs::create_dir_all(directory)
                .with_context(|| format!("create {}", directory.display()))?;
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            println!("{}", path.display());
        }
        Ok(())
    }

    /// Prints the summary. Only a workload that could not be measured is a failure; a missed goal
    /// is a result.
    pub(super) fn finish(&self) -> ExitCode {
        let results = self.rows().flat_map(Row::goal_results).collect::<Vec<_>>();
        let count = |status: GoalStatus| {
            results
                .iter()
                .filter(|result| result.status == status)
                .count()
        };
        let failed = self.rows.iter().filter(|row| row.outcome.is_err()).count();
        println!(
            "{} goals: {} met, {} undecided, {} missed; {failed} workloads could not be measured",
            results.len(),
            count(GoalStatus::Met),
            count(GoalStatus::Undecided),
            count(GoalStatus::Missed),
        );
        for caveat in &self.caveats {
            println!("Not publishable. {caveat}");
        }
        match failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter_map(|row| row.outcome.as_ref().ok())
    }
}

impl Measured {
    /// Prints the workload to the terminal.
    pub(super) fn print(&self) {
        let name = self.workload.name;
        println!(
            "\n== {}  ({name}, {} s)",
            self.workload.title,
            self.took.as_secs()
        );
        match &self.outcome {
            Ok(row) => print!("{}", table::text(row)),
            Err(error) => println!("not measured: {error:#}"),
        }
        if let Some(profile) = &self.profile {
            print!("{}", time_shares::text(profile));
        }
    }
}

/// Lists every workload with its goals.
pub(super) fn list() -> Vec<String> {
    let mut lines = Vec::new();
    for workload in WORKLOADS {
        lines.push(format!("{:<16} {}", workload.name, workload.title));
        let goals = workload.goals.iter();
        lines.extend(
            goals.map(|goal| format!("{:<16}   {}", "", describe_goal(*goal, workload.unit))),
        );
    }
    lines
}

/// Describes a goal in words.
fn describe_goal(goal: Goal, unit: Unit) -> String {
    let name = goal.metric.name();
    match goal.limit {
        Limit::AtMost(limit, sut) => format!("{name} ≤ {limit} × {sut}"),
        Limit::AtLeast(limit, sut) => format!("{name} ≥ {limit} × {sut}"),
        Limit::Value(limit) => {
            let (unit_name, scale) = goal.metric.unit(unit);
            format!("{name} ≤ {} {unit_name}", trimmed(limit * scale))
                .trim()
                .to_owned()
        }
    }
}

/// Formats a limit with at most three decimals.
fn trimmed(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    format!("{rounded}")
}

/// Formats a value in the display unit of its metric, without the unit.
fn in_unit(metric: Metric, unit: Unit, value: f64) -> String {
    shown(value * metric.unit(unit).1)
}

fn command_line() -> String {
    // The program is started as `mesh-bench benchmark`, and users start it by xtask.
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    format!("cargo xtask bench {}", arguments.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::metric::SystemUnderTest;

    #[test]
    fn goals_are_described_with_units() {
        let goal = |metric, limit| Goal { metric, limit };
        for (goal, expected) in [
            (
                goal(Metric::CpuOut, Limit::AtMost(0.55, SystemUnderTest::Envoy)),
                "CPU out ≤ 0.55 × Envoy",
            ),
            (
                goal(Metric::MemoryOut, Limit::Value(50.0 * 1024.0)),
                "memory out ≤ 50 KiB/target",
            ),
            (
                goal(Metric::FirstRequest, Limit::Value(3e-3)),
                "first request ≤ 3 ms",
            ),
            (
                goal(Metric::Conntrack, Limit::Value(0.0)),
                "conntrack entries ≤ 0",
            ),
        ] {
            assert_eq!(describe_goal(goal, Unit::Target), expected);
        }
    }

    #[test]
    fn every_goal_description_names_its_metric() {
        for workload in WORKLOADS {
            for goal in workload.goals {
                assert!(describe_goal(*goal, workload.unit).contains(goal.metric.name()));
            }
        }
    }
}
