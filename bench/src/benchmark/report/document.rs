//! Renders the results as Markdown: a table of goals, a table of numbers for each workload, machine
//! and versions.

use std::fmt::Write as _;

use super::table::{cell, metrics, ratio, rounds, suts, verdict};
use super::{Measured, Report, describe_goal, time_shares};
use crate::benchmark::row::{GoalStatus, Row};

pub(super) fn text(report: &Report) -> String {
    let mut text = String::from("# Results\n\n");
    for caveat in &report.caveats {
        text += &format!("**Not publishable.** {caveat}\n\n");
    }
    text += &filled(&format!(
        "Written by `{}`; `target/bench/results.json` then has every number of every round. Medians over the \
         rounds, ranges in brackets; ratios are medians of the rounds' ratios with an interval of 95 %.",
        report.command
    ));
    text += "\n\n![Cost of mesh-proxy relative to each system](results.svg)\n\n## Goals\n\n";
    text += "| workload | goal | measured | |\n|---|---|---|---|\n";
    for row in report.rows() {
        for result in row.goal_results() {
            let verdict = match result.status {
                GoalStatus::Met => verdict(result.status).to_owned(),
                _ => format!("**{}**", verdict(result.status)),
            };
            let _written = writeln!(
                text,
                "| {} | {} | {} | {verdict} |",
                row.workload.title,
                describe_goal(result.goal, row.workload.unit),
                ratio(&result, row)
            );
        }
    }
    text += "\n## Numbers\n";
    for measured in &report.rows {
        text += &section(measured);
    }
    text += "\n## Machine and versions\n\n| | |\n|---|---|\n";
    for (name, value) in report.machine.iter().chain(&report.versions) {
        let _written = writeln!(text, "| {name} | {value} |");
    }
    text
}

/// Breaks a paragraph into lines as the documents of this project have them.
fn filled(paragraph: &str) -> String {
    const WIDTH: usize = 120;
    let mut text = String::new();
    let mut width = 0;
    for word in paragraph.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > WIDTH {
            text.push('\n');
            width = 0;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text
}

fn section(measured: &Measured) -> String {
    let heading = format!(
        "\n### {} (`{}`)\n\n",
        measured.workload.title, measured.workload.name
    );
    match &measured.outcome {
        Ok(row) => {
            let profile = measured.profile.as_ref().map(time_shares::markdown);
            heading + &numbers(row) + &profile.unwrap_or_default()
        }
        Err(error) => format!("{heading}Not measured: {error:#}\n"),
    }
}

fn numbers(row: &Row) -> String {
    let metrics = metrics(row);
    let mut text = String::from("| |");
    for metric in &metrics {
        text += &format!(" {} {} |", metric.name(), metric.unit(row.workload.unit).0);
    }
    text += &format!("\n|---|{}\n", "---|".repeat(metrics.len()));
    for sut in suts(row) {
        text += &format!("| {sut} |");
        for metric in &metrics {
            text += &match cell(row, sut, *metric) {
                Some((median, spread)) if spread.is_empty() => format!(" {median} |"),
                Some((median, spread)) => format!(" {median} ({spread}) |"),
                None => " |".to_owned(),
            };
        }
        text.push('\n');
    }
    text + &format!("\n{}.\n", rounds(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_as_long_as_they_may_be() {
        let words = vec!["µs-per-req"; 24].join(" ");
        let text = filled(&words);
        let lines: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(lines, [120, 120, 21]);
        assert_eq!(text.replace('\n', " "), words);
        let whole = format!("{} {}", "a".repeat(60), "b".repeat(59));
        assert_eq!(filled(&whole), whole);
    }
}
