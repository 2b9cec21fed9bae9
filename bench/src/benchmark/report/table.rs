//! Renders the table of one workload: a line for each system, then a line for each goal.

use std::fmt::Write as _;

use super::{describe_goal, in_unit};
use crate::benchmark::metric::{Metric, SystemUnderTest, shown};
use crate::benchmark::row::{GoalResult, GoalStatus, Row};
use crate::benchmark::statistics::{median, range};
use crate::benchmark::workload::Limit;

/// Returns the measured systems, the baseline first.
pub(super) fn suts(row: &Row) -> Vec<SystemUnderTest> {
    let mut suts: Vec<SystemUnderTest> = row
        .rounds
        .iter()
        .flat_map(|round| round.samples.keys().copied())
        .collect();
    suts.sort_unstable();
    suts.dedup();
    suts
}

/// Returns the metrics of the workload that any system has values of.
pub(super) fn metrics(row: &Row) -> Vec<Metric> {
    let has = |metric: &Metric| {
        suts(row)
            .iter()
            .any(|sut| !row.values(*sut, *metric).is_empty())
    };
    row.workload.shown.iter().copied().filter(has).collect()
}

/// Returns the median of a cell and the range over its rounds.
pub(super) fn cell(row: &Row, sut: SystemUnderTest, metric: Metric) -> Option<(String, String)> {
    let values = row.values(sut, metric);
    let in_unit = |value| in_unit(metric, row.workload.unit, value);
    let (low, high) = range(&values)?;
    let spread = match values.len() {
        1 => String::new(),
        _ => format!("{}–{}", in_unit(low), in_unit(high)),
    };
    Some((in_unit(median(&values)?), spread))
}

/// Describes how many rounds count, how many were discarded, and which ones failed.
pub(super) fn rounds(row: &Row) -> String {
    let mut text = format!("{} rounds", row.counted().count());
    if row.discarded() > 0 {
        let _written = write!(
            text,
            ", {} discarded: other programs used the machine",
            row.discarded()
        );
    }
    let noisy = row
        .counted()
        .filter(|round| !round.noise.is_quiet())
        .count();
    if noisy > 0 {
        let _written = write!(
            text,
            ", {noisy} of them while other programs used the machine"
        );
    }
    if let Some(note) = &row.note {
        let _written = write!(text, "; {note}");
    }
    for (sut, count) in row.failed() {
        let _written = write!(text, ", {count} operations of {sut} failed");
    }
    text
}

pub(super) fn ratio(result: &GoalResult, row: &Row) -> String {
    let in_unit = |value: f64| match result.goal.limit {
        Limit::Value(_) => in_unit(result.goal.metric, row.workload.unit, value),
        _ => shown(value),
    };
    let estimate = result.estimate;
    format!(
        "{} ({}–{})",
        in_unit(estimate.median),
        in_unit(estimate.low),
        in_unit(estimate.high)
    )
}

pub(super) fn verdict(status: GoalStatus) -> &'static str {
    match status {
        GoalStatus::Met => "met",
        GoalStatus::Undecided => "undecided",
        GoalStatus::Missed => "missed",
    }
}

pub(super) fn text(row: &Row) -> String {
    let metrics = metrics(row);
    let heading = |metric: &Metric| {
        let unit = metric.unit(row.workload.unit).0;
        format!("{} {unit}", metric.name()).trim().to_owned()
    };
    let mut table = vec![
        std::iter::once(String::new())
            .chain(metrics.iter().map(heading))
            .collect::<Vec<_>>(),
    ];
    for sut in suts(row) {
        let cell = |metric: &Metric| match cell(row, sut, *metric) {
            Some((median, spread)) if spread.is_empty() => median,
            Some((median, spread)) => format!("{median} ({spread})"),
            None => "-".to_owned(),
        };
        let cells = metrics.iter().map(cell);
        table.push(std::iter::once(sut.to_string()).chain(cells).collect());
    }
    let mut text = aligned(&table);
    for result in row.goal_results() {
        let _written = writeln!(
            text,
            "  {:<11} {:<42} {}",
            verdict(result.status),
            describe_goal(result.goal, row.workload.unit),
            ratio(&result, row)
        );
    }
    text + &rounds(row) + "\n"
}

/// Pads each column to the width of its widest cell.
fn aligned(table: &[Vec<String>]) -> String {
    let columns = table.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = table.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in table {
        let cells = line.iter().zip(&widths);
        let cells: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(cells.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{
        machine::Noise,
        row::{Round, Sample},
        workload,
    };

    fn row() -> Row {
        let sample = |cpu: f64| {
            Sample::from([
                (Metric::CpuOut, cpu),
                (Metric::CpuIn, cpu),
                (Metric::Rate, 0.1 / cpu),
            ])
        };
        let round = |ours, envoy| Round {
            samples: [
                (SystemUnderTest::Envoy, sample(envoy)),
                (SystemUnderTest::MeshProxy, sample(ours)),
                (
                    SystemUnderTest::Direct,
                    Sample::from([(Metric::Rate, 70_000.0)]),
                ),
            ]
            .into(),
            noise: Noise::default(),
            failed: [(SystemUnderTest::Envoy, 7)].into(),
        };
        Row {
            workload: workload::find("http1-64").expect("it exists"),
            rounds: vec![
                round(10e-6, 30e-6),
                round(11e-6, 33e-6),
                round(12e-6, 30e-6),
            ],
            with_noisy: false,
            note: None,
        }
    }

    #[test]
    fn table_rows_are_ordered_baseline_mesh_others() {
        assert_eq!(
            suts(&row()),
            [
                SystemUnderTest::Direct,
                SystemUnderTest::MeshProxy,
                SystemUnderTest::Envoy
            ]
        );
        assert_eq!(
            metrics(&row()),
            [Metric::CpuOut, Metric::CpuIn, Metric::Rate]
        );
    }

    #[test]
    fn table_has_medians_ranges_and_goal_results() {
        let text = text(&row());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("CPU out µs/req"), "{text}");
        assert!(lines[1].starts_with("direct  -"), "{text}");
        assert!(lines[2].contains("11.0 (10.0–12.0)"), "{text}");
        assert!(
            text.contains("met         CPU out ≤ 0.55 × Envoy"),
            "{text}"
        );
        let end = "3 rounds, 21 operations of Envoy failed\n";
        assert!(text.ends_with(end), "{text}");
    }
}
