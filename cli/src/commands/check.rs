//! `meshctl check`.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::{
    args::Global,
    check::{self, CATEGORIES, Category, CategoryReport, Report, Subject},
    exit::Failure,
    node::Node,
    output::{self, style::Mark},
};

/// Examples:
///   meshctl check
///   meshctl check --wait 2m -o short
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// table: everything; short: only what is not in order; json: for programs
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Look again until everything is in order, for at most this long (10s, 2m)
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = mesh_core::units::parse_duration)]
    wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Table,
    Short,
    Json,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    success: bool,
    categories: &'a [CategoryReport],
}

/// Between two looks of `--wait`.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + args.wait;
    let reports = loop {
        let reports = look(global).await?;
        if success(&reports) || tokio::time::Instant::now() >= deadline {
            break reports;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let success = success(&reports);
    match args.output {
        Form::Json => output::json(
            "Check",
            &Answer {
                success,
                categories: &reports,
            },
        )?,
        Form::Table => output::text(&render(&reports, |_| true, success))?,
        Form::Short => output::text(&render(&reports, |report| report.mark != Mark::Ok, success))?,
    }
    if success {
        Ok(())
    } else {
        Err(Failure::Negative.into())
    }
}

/// One pass over everything that can be looked at. A node that was named must exist; without a name, a machine without a node is a machine all the same.
async fn look(global: &Global) -> anyhow::Result<Vec<CategoryReport>> {
    let node = match Node::find(global.local.as_deref()) {
        Ok(node) => Some(node),
        Err(Failure::Unreachable(_)) if global.local.is_none() => None,
        Err(failure) => return Err(failure.into()),
    };
    let subject = Subject { node };
    if subject.node.is_none() {
        output::note(
            "no local node runs: only the machine is checked; `meshctl local up DIR` starts a node",
        );
    }
    let mut reports = Vec::new();
    for category in CATEGORIES
        .iter()
        .filter(|category| applies(category, &subject))
    {
        let (report, go_on) = check::run(category, &subject).await;
        reports.push(report);
        if !go_on {
            break;
        }
    }
    Ok(reports)
}

fn applies(category: &Category, subject: &Subject) -> bool {
    subject.node.is_some() || !category.needs_node
}

fn success(reports: &[CategoryReport]) -> bool {
    reports
        .iter()
        .flat_map(|category| &category.checks)
        .all(|report| report.mark != Mark::Fail)
}

fn render(reports: &[CategoryReport], shown: impl Fn(&Report) -> bool, success: bool) -> String {
    let mut text = String::new();
    for category in reports {
        let rows: String = category
            .checks
            .iter()
            .filter(|report| shown(report))
            .map(row)
            .collect();
        if !rows.is_empty() {
            let name = category.category_name;
            text += &format!("{name}\n{}\n{rows}\n", "-".repeat(name.len()));
        }
    }
    let verdict = if success { Mark::Ok } else { Mark::Fail };
    text + &format!("Status check results are {}\n", verdict.show())
}

fn row(report: &Report) -> String {
    let line = format!("{} {}", report.mark.show(), report.description);
    match (report.mark, report.detail.is_empty()) {
        (Mark::Ok, true) => format!("{line}\n"),
        (Mark::Ok, false) => format!("{line} ({})\n", report.detail),
        _ => format!(
            "{line}\n    {}\n    see {} for hints\n",
            report.detail, report.hint
        ),
    }
}
