//! `meshctl check`.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    check::{self, CategoryReport, Mode, Report, explain, gather},
    exit::Failure,
    global::Global,
    mesh::{Mesh, Scope},
    output::{self, progress::Progress, style::Mark},
};

/// Examples:
///   meshctl check --pre                    before installing
///   meshctl check --proxy -n shop          the pods of shop, too
///   meshctl check --wait 2m -o short
///   meshctl check explain agent-cni        what a row means and how to repair it
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Can the mesh be installed on this cluster, by you?
    #[arg(long, conflicts_with_all = ["crds", "proxy"])]
    pre: bool,
    /// Only whether the custom resources are there
    #[arg(long, conflicts_with = "proxy")]
    crds: bool,
    /// The meshed pods and the policies too: of -n NAMESPACE, or of all
    #[arg(long)]
    proxy: bool,
    /// table: everything; short: only what is not in order; json: for programs
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Look again until everything is in order, for at most this long (10s, 2m)
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = mesh_core::units::parse_duration)]
    wait: Duration,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print what the guide says of a check, by the ID that its row shows
    Explain {
        /// As in `see: meshctl check explain ID`, or the `name` of -o json
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
struct Answer<'a> {
    success: bool,
    categories: &'a [CategoryReport],
}

/// Between two looks of `--wait`; a look at a cluster takes about as long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
    let scope = match &global.namespace {
        Some(namespace) => Scope::Namespace(namespace.clone()),
        None => Scope::All,
    };
    let deadline = Instant::now() + args.wait;
    let mut progress = Progress::new("looking");
    let reports = loop {
        let facts = progress
            .run(gather::facts(mesh.as_ref(), mode, scope.clone()))
            .await;
        let reports = check::judge(&facts);
        if check::success(&reports) || Instant::now() >= deadline {
            break reports;
        }
        progress.set_text(&obstacle(&reports));
        progress.run(tokio::time::sleep(LOOK_AGAIN)).await;
    };
    progress.clear();
    let success = check::success(&reports);
    match args.output {
        OutputFormat::Json => output::json(
            "Check",
            &Answer {
                success,
                categories: &reports,
            },
        )?,
        OutputFormat::Table => output::text(&render(&reports, |_| true, success))?,
        OutputFormat::Short => {
            output::text(&render(&reports, |report| report.mark != Mark::Ok, success))?
        }
    }
    if success {
        Ok(())
    } else {
        Err(Failure::NegativeResult.into())
    }
}

/// What was named must be there; without a name, a machine without a node is a machine all the
/// same.
async fn find(global: &Global) -> anyhow::Result<Option<Mesh>> {
    let named = global.local_name().is_some() || global.has_cluster_flag();
    match Mesh::find(global).await {
        Ok(mesh) => Ok(Some(mesh)),
        Err(error)
            if !named
                && matches!(
                    error.downcast_ref::<Failure>(),
                    Some(Failure::Unreachable(_))
                ) =>
        {
            output::note(
                "no local node runs and there is no kubeconfig: only the machine is checked; `meshctl local up DIR` starts a node",
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What `--wait` waits for.
fn obstacle(reports: &[CategoryReport]) -> String {
    let all = reports.iter().flat_map(|category| &category.checks);
    let mut failed = all.filter(|report| report.mark == Mark::Fail && report.cause.is_none());
    let first = failed.next().map_or_else(String::new, |report| {
        format!(
            "not yet: {}: {}",
            report.description,
            report
                .detail
                .first()
                .map(String::as_str)
                .unwrap_or_default()
        )
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
        let rows: String = category
            .checks
            .iter()
            .filter(|report| shown(report))
            .map(|report| row(report, reports))
            .collect();
        if !rows.is_empty() {
            let name = category.category_name;
            text += &format!("{name}\n{}\n{rows}\n", "-".repeat(name.len()));
        }
    }
    let verdict = if success { Mark::Ok } else { Mark::Fail };
    text + &format!("Status check results are {}\n", verdict.show())
}

/// What has consequences, once, before them.
fn root_causes(reports: &[CategoryReport]) -> String {
    let all = || reports.iter().flat_map(|category| &category.checks);
    let mut text = String::new();
    for cause in all().filter(|report| !consequences(report, reports).is_empty()) {
        let rows = match consequences(cause, reports).len() {
            1 => "one row below follows from it".to_owned(),
            rows => format!("{rows} rows below follow from it"),
        };
        text += &format!(
            "{}    {rows}: repair it, then look again\n",
            whole_row(cause)
        );
    }
    match text.is_empty() {
        true => text,
        false => {
            let title = "root causes";
            format!("{title}\n{}\n{text}\n", "-".repeat(title.len()))
        }
    }
}

/// The rows that follow from this one.
fn consequences<'a>(cause: &Report, reports: &'a [CategoryReport]) -> Vec<&'a Report> {
    let all = reports.iter().flat_map(|category| &category.checks);
    all.filter(|report| report.cause == Some(cause.name))
        .collect()
}

/// More than this of one kind of trouble fills the screen and helps no reader; JSON has all of it.
const SHOWN: usize = 10;

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
    if !consequences(report, reports).is_empty() {
        return format!("{line} (a root cause, see above)\n");
    }
    whole_row(report)
}

fn whole_row(report: &Report) -> String {
    let mut text = format!("{} {}\n", report.mark.show(), report.description);
    for detail in report.detail.iter().take(SHOWN) {
        text += &format!("    {detail}\n");
    }
    if report.detail.len() > SHOWN {
        text += &format!(
            "    and {} more; -o json has all\n",
            report.detail.len() - SHOWN
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
        Report::of_test(
            ("agent-ready", "a ready agent runs on every node"),
            mark,
            detail,
            "kubectl -n linkerd describe daemonset mesh-agent",
        )
    }

    /// A cause is said in full once, above everything; its consequences name it and have no advice.
    #[test]
    fn a_root_cause_comes_first_and_once() {
        let cause = report(Mark::Fail, &["node a has no pod"]);
        let mut consequence = Report::of_test(
            (
                "pods-enrolled",
                "connections of every meshed pod are redirected",
            ),
            Mark::Fail,
            vec!["shop/web-0 is not enrolled".to_owned()],
            "",
        );
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
        assert_eq!(
            lines[6],
            "    one row below follows from it: repair it, then look again"
        );
        assert!(lines[10].ends_with("a ready agent runs on every node (a root cause, see above)"));
        assert!(lines[11].ends_with("redirected (follows from agent-ready)"));
    }

    #[test]
    fn a_row_that_is_wrong_says_what_to_try() {
        let text = row(
            &report(Mark::Fail, &["node a has no pod", "node b has no pod"]),
            &[],
        );
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
    fn long_lists_are_cut() {
        let lines: Vec<String> = (0..25).map(|number| number.to_string()).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let text = row(&report(Mark::Warn, &lines), &[]);
        assert!(text.contains("    9\n    and 15 more; -o json has all\n"));
    }

    #[test]
    fn waiting_names_the_first_obstacle() {
        let category = CategoryReport {
            category_name: "mesh-agent",
            checks: vec![
                report(Mark::Ok, &[]),
                report(Mark::Fail, &["node a has no pod"]),
                report(Mark::Fail, &["x"]),
            ],
        };
        assert_eq!(
            obstacle(&[category]),
            "not yet: a ready agent runs on every node: node a has no pod (and 1 more)"
        );
    }
}
