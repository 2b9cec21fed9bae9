//! `meshctl check`.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tokio::time::Instant;

use crate::check::{self, CategoryReport, Report, explain};
use crate::exit::Failure;
use crate::facts::{Facts, Mode};
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::progress::Progress;
use crate::output::style::Mark;
use crate::resource::Scope;
use crate::{gather, output};

const EXAMPLES: &str = "\
Examples:
  meshctl check --pre                    before the installation
  meshctl check --proxy -n shop          include the pods of namespace shop
  meshctl check --wait 2m -o short
  meshctl check explain agent-cni        explain a row and its repair";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Check whether you can install the mesh on this cluster
    #[arg(long, conflicts_with_all = ["crds", "proxy"])]
    pre: bool,
    /// Check only whether the custom resource definitions are installed
    #[arg(long, conflicts_with = "proxy")]
    crds: bool,
    /// Check meshed pods and policies, too: of -n NAMESPACE, or of all namespaces
    #[arg(long)]
    proxy: bool,
    #[command(flatten)]
    reporting: Reporting,
}

/// How the results are reported, and when.
#[derive(Debug, clap::Args)]
pub(super) struct Reporting {
    /// table: all rows; short: only rows with problems; json: for programs
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Repeat the checks until all pass, for at most this long (10s, 2m)
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = mesh_core::units::parse_duration)]
    wait: Duration,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the guide's section about a check
    Explain {
        /// The ID in the row (`see: meshctl check explain ID`) or the `name` in -o json
        id: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Table,
    Short,
    Json,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Output<'a> {
    success: bool,
    categories: &'a [CategoryReport],
}

/// Pause between two attempts of `--wait`; querying a cluster takes about as long.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    if let Some(Command::Explain { id }) = &args.command {
        return output::text(&explain::explain(id).map_err(Failure::Input)?);
    }
    let mesh = find(global).await?;
    let mode = match (args.pre, args.crds) {
        (true, _) => Mode::Pre,
        (_, true) => Mode::Crds,
        _ => Mode::Installed {
            proxies: args.proxy,
        },
    };
    Box::pin(report(mesh.as_ref(), mode, &args.reporting, global)).await
}

/// Evaluates the checks of a mode and prints them.
pub(super) async fn report(
    mesh: Option<&Mesh>,
    mode: Mode,
    reporting: &Reporting,
    global: &Global,
) -> anyhow::Result<()> {
    let scope = match &global.namespace {
        Some(namespace) => Scope::Namespace(namespace.clone()),
        None => Scope::All,
    };
    let gather = async || Ok(Box::pin(gather::facts(mesh, mode, scope.clone())).await);
    Box::pin(evaluate(gather, reporting)).await
}

/// Evaluates the checks of the facts that `gather` returns, and prints them.
pub(super) async fn evaluate(
    gather: impl AsyncFn() -> anyhow::Result<Facts>,
    reporting: &Reporting,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + reporting.wait;
    let mut progress = Progress::new("querying the mesh");
    let reports = loop {
        let facts = Box::pin(progress.run(gather())).await?;
        let reports = check::evaluate(&facts);
        if check::success(&reports) || Instant::now() >= deadline {
            break reports;
        }
        progress.set_text(&first_failure(&reports));
        progress.run(tokio::time::sleep(RETRY_INTERVAL)).await;
    };
    progress.clear();
    let success = check::success(&reports);
    match reporting.output {
        OutputFormat::Json => {
            let categories = &reports;
            output::json(
                "Check",
                &Output {
                    success,
                    categories,
                },
            )?;
        }
        OutputFormat::Table => output::text(&render(&reports, |_| true, success))?,
        OutputFormat::Short => {
            output::text(&render(
                &reports,
                |report| report.mark.is_problem(),
                success,
            ))?;
        }
    }
    if success {
        Ok(())
    } else {
        Err(Failure::NegativeResult.into())
    }
}

/// Returns the mesh to check. A mesh that flags select must exist; without flags and without a
/// mesh, only the machine is checked.
async fn find(global: &Global) -> anyhow::Result<Option<Mesh>> {
    let is_explicit = global.local_name().is_some() || global.has_cluster_flag();
    match Mesh::find(global).await {
        Ok(mesh) => Ok(Some(mesh)),
        Err(error)
            if !is_explicit
                && matches!(
                    error.downcast_ref::<Failure>(),
                    Some(Failure::Unreachable(_))
                ) =>
        {
            output::note(
                "no local node is up and there is no kubeconfig: checking only the machine; `meshctl local up DIR` starts a node",
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Describes the first failure that `--wait` waits for.
fn first_failure(reports: &[CategoryReport]) -> String {
    let is_root = |report: &&Report| report.mark == Mark::Fail && report.cause.is_none();
    let mut failed = check::rows(reports).filter(is_root);
    let first = failed.next().map_or_else(String::new, |report| {
        let detail = report.detail.first().map_or("", String::as_str);
        format!("waiting: {}: {detail}", report.description)
    });
    match failed.count() {
        0 => first,
        more => format!("{first} (and {more} more)"),
    }
}

pub(super) fn render(
    reports: &[CategoryReport],
    shown: impl Fn(&Report) -> bool,
    success: bool,
) -> String {
    let mut text = root_causes(reports);
    for category in reports {
        let shown = || category.checks.iter().filter(|report| shown(report));
        let ran = shown().filter(|report| report.mark != Mark::Skip);
        let mut rows: String = ran.map(|report| row(report, reports)).collect();
        // A category without results is part of the summary below.
        if !rows.is_empty() {
            rows += &skipped(shown());
            let name = category.category_name;
            text += &format!("{name}\n{}\n{rows}\n", "-".repeat(name.len()));
        }
    }
    let is_skipped = |report: &Report| report.mark == Mark::Skip;
    let without_results = reports
        .iter()
        .filter(|category| category.checks.iter().all(is_skipped))
        .flat_map(|category| &category.checks);
    let rows = skipped(without_results.filter(|report| shown(report)));
    if !rows.is_empty() {
        text += &format!("other checks\n------------\n{rows}\n");
    }
    let mark = if success { Mark::Ok } else { Mark::Fail };
    text + &format!("Status check results are {}\n", mark.show())
}

/// Renders the root causes that have consequences.
fn root_causes(reports: &[CategoryReport]) -> String {
    let mut text = String::new();
    for cause in check::rows(reports) {
        let rows = match consequences(cause, reports) {
            0 => continue,
            1 => "one row below follows from it".to_owned(),
            rows => format!("{rows} rows below follow from it"),
        };
        text += &format!(
            "{}    {rows}: repair it, then check again\n",
            full_row(cause)
        );
    }
    if text.is_empty() {
        return text;
    }
    let title = "root causes";
    format!("{title}\n{}\n{text}\n", "-".repeat(title.len()))
}

/// Returns the number of rows that are consequences of `cause`.
fn consequences(cause: &Report, reports: &[CategoryReport]) -> usize {
    check::rows(reports)
        .filter(|report| report.mark.is_problem() && report.cause == Some(cause.name))
        .count()
}

/// Renders the skipped checks, a line for each reason.
fn skipped<'a>(checks: impl Iterator<Item = &'a Report>) -> String {
    let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
    for report in checks.filter(|report| report.mark == Mark::Skip) {
        let reason = report.detail.first().map_or("", String::as_str);
        match by_reason.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, names)) => names.push(report.description),
            None => by_reason.push((reason, vec![report.description])),
        }
    }
    let lines = by_reason.into_iter().map(|(reason, names)| {
        let what = match names[..] {
            [name] => format!("skipped: {name}"),
            _ => format!("{} checks skipped", names.len()),
        };
        format!("{} {what} ({reason})\n", Mark::Skip.show())
    });
    lines.collect()
}

/// Maximum number of problems in a row of the table; JSON has all of them.
const MAX_DETAILS: usize = 10;

fn row(report: &Report, reports: &[CategoryReport]) -> String {
    let line = format!("{} {}", report.mark.show(), report.description);
    if let Some(cause) = report.cause {
        return format!("{line} (follows from {cause})\n");
    }
    if report.mark == Mark::Ok {
        return match report.detail.first() {
            None => format!("{line}\n"),
            Some(detail) => format!("{line} ({detail})\n"),
        };
    }
    if consequences(report, reports) > 0 {
        return format!("{line} (a root cause, see above)\n");
    }
    full_row(report)
}

fn full_row(report: &Report) -> String {
    let mut text = format!("{} {}\n", report.mark.show(), report.description);
    for detail in report.detail.iter().take(MAX_DETAILS) {
        text += &format!("    {detail}\n");
    }
    if report.detail.len() > MAX_DETAILS {
        text += &format!(
            "    and {} more; -o json has all\n",
            report.detail.len() - MAX_DETAILS
        );
    }
    for fix in &report.fixes {
        text += &format!("    try: {fix}\n");
    }
    text + &format!("    see: meshctl check explain {}\n", report.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mark: Mark, detail: &[&str]) -> Report {
        let detail: Vec<String> = detail.iter().map(|line| (*line).to_owned()).collect();
        Report::for_test(
            ("agent-ready", "a ready agent runs on every node"),
            mark,
            detail,
            "kubectl -n linkerd describe daemonset mesh-agent",
        )
    }

    /// The root cause is shown in full once, above all categories; its consequences name it and
    /// have no advice.
    #[test]
    fn root_cause_is_shown_first_and_once() {
        let cause = report(Mark::Fail, &["node a has no pod"]);
        let description = "connections of every meshed pod are redirected";
        let detail = vec!["shop/web-0 is not enrolled".to_owned()];
        let mut consequence =
            Report::for_test(("pods-enrolled", description), Mark::Fail, detail, "");
        consequence.cause = Some("agent-ready");
        let reports = [CategoryReport {
            category_name: "mesh-agent",
            checks: vec![cause, consequence],
        }];
        let text = render(&reports, |_| true, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["root causes", "-----------"]);
        assert_eq!(text.matches("node a has no pod").count(), 1);
        assert_eq!(text.matches("try: ").count(), 1);
        let rows = "    one row below follows from it: repair it, then check again";
        assert_eq!(lines[6], rows);
        assert!(lines[10].ends_with("a ready agent runs on every node (a root cause, see above)"));
        assert!(lines[11].ends_with("redirected (follows from agent-ready)"));
    }

    #[test]
    fn failed_row_has_details_and_advice() {
        let failed = report(Mark::Fail, &["node a has no pod", "node b has no pod"]);
        let text = row(&failed, &[]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "    node a has no pod",
                "    node b has no pod",
                "    try: kubectl -n linkerd describe daemonset mesh-agent",
                "    see: meshctl check explain agent-ready",
            ]
        );
    }

    #[test]
    fn long_details_are_truncated() {
        let lines: Vec<String> = (0..25).map(|number| number.to_string()).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let text = row(&report(Mark::Warn, &lines), &[]);
        assert!(text.contains("    9\n    and 15 more; -o json has all\n"));
    }

    /// A category whose checks were all skipped has no title of its own.
    #[test]
    fn skipped_checks_are_counted_for_each_reason() {
        let skipped = |reason: &str| report(Mark::Skip, &[reason]);
        let category = |name, checks| CategoryReport {
            category_name: name,
            checks,
        };
        let reports = [
            category(
                "mesh-agent",
                vec![
                    report(Mark::Ok, &[]),
                    skipped("no ConfigMap"),
                    skipped("forbidden"),
                    skipped("no ConfigMap"),
                ],
            ),
            category("linkerd-policy", vec![skipped("k8s-api failed")]),
        ];
        let text = render(&reports, |_| true, false);
        let skip = Mark::Skip.show();
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            lines[..6],
            [
                &*format!("{skip} 2 checks skipped (no ConfigMap)"),
                &*format!("{skip} skipped: a ready agent runs on every node (forbidden)"),
                "",
                "other checks",
                "------------",
                &*format!("{skip} skipped: a ready agent runs on every node (k8s-api failed)"),
            ]
        );
        let short = render(&reports, |report| report.mark.is_problem(), false);
        assert_eq!(short.lines().count(), 1, "{short}");
    }

    #[test]
    fn wait_shows_the_first_failure() {
        let category = CategoryReport {
            category_name: "mesh-agent",
            checks: vec![
                report(Mark::Ok, &[]),
                report(Mark::Fail, &["node a has no pod"]),
                report(Mark::Fail, &["x"]),
            ],
        };
        let expect = "waiting: a ready agent runs on every node: node a has no pod (and 1 more)";
        assert_eq!(first_failure(&[category]), expect);
    }
}
