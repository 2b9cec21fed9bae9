//! The results as a document: what was measured on what with what, a table of goals, and a table of
//! numbers for each workload.

use std::fmt::Write as _;

use super::{
    Measured, Report, spent,
    table::{cell, metrics, peers, ratio, rounds, verdict},
    wish,
};
use crate::benchmark::row::{Met, Row};

pub(super) fn text(report: &Report) -> String {
    let mut text = String::from("# Results\n\n");
    for caveat in &report.caveats {
        text += &format!("**No result to publish.** {caveat}\n\n");
    }
    text += &format!(
        "Written by `{}`; every number of every round is in [results.json](results.json). Medians over the rounds, ranges in brackets; ratios are medians of \
         the rounds' ratios with an interval of 95 %.\n\n![Our cost over that of each peer](results.svg)\n\n## Goals\n\n",
        report.command
    );
    text += "| workload | goal | measured | |\n|---|---|---|---|\n";
    for row in report.rows() {
        for judged in row.judged() {
            let verdict = match judged.met {
                Met::Yes => verdict(judged.met).to_owned(),
                _ => format!("**{}**", verdict(judged.met)),
            };
            let _written = writeln!(
                text,
                "| {} | {} | {} | {verdict} |",
                row.workload.title,
                wish(judged.goal, row.workload.unit),
                ratio(&judged, row)
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

fn section(measured: &Measured) -> String {
    let heading = format!(
        "\n### {} (`{}`)\n\n",
        measured.workload.title, measured.workload.name
    );
    match &measured.outcome {
        Ok(row) => {
            let profile = measured.profile.as_ref().map(spent::markdown);
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
    for peer in peers(row) {
        text += &format!("| {peer} |");
        for metric in &metrics {
            text += &match cell(row, peer, *metric) {
                Some((median, spread)) if spread.is_empty() => format!(" {median} |"),
                Some((median, spread)) => format!(" {median} ({spread}) |"),
                None => " |".to_owned(),
            };
        }
        text.push('\n');
    }
    text + &format!("\n{}.\n", rounds(row))
}
