//! `meshctl why`: follows one connection or request through everything that decides about it, on
//! the running system. [`gather`] makes the connection and collects the observations of all parts;
//! [`report`] evaluates them without further input.

mod authorization;
mod facts;
mod gather;
mod kind;
mod question;
mod remedy;
mod render;
mod report;
pub(super) mod unit;

use std::time::Duration;

use serde::Serialize;

use self::facts::Facts;
use self::question::Question;
use self::report::{Report, VerdictOutcome};
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::progress::Progress;
use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Pod to connect from: NAME, NAMESPACE/NAME, NAME.NAMESPACE, or KIND/NAME of a workload with a
    /// ready pod
    client: String,
    /// Service (NAME or NAME.NAMESPACE) or IP address to connect to, with :PORT; an arrow (quoted)
    /// or `to` may precede it
    #[arg(allow_hyphen_values = true, value_name = "TARGET")]
    second: Option<String>,
    #[arg(hide = true)]
    third: Option<String>,
    /// Method and path of a request to send; without it only a connection is opened
    #[arg(last = true, value_name = "METHOD PATH")]
    request: Vec<String>,
    /// Permit methods other than GET, HEAD and OPTIONS
    #[arg(long)]
    allow_unsafe: bool,
    /// How long the request may take (500ms, 10s)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_timeout)]
    timeout: Duration,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

const HELP: &str = "\
Makes a real connection from the network namespace of the client's pod and, after --, sends a real
request on it, once (a safe method up to three times, until the proxies have reported it). The
request has the header l5d-why-id, which the application receives. Shows what the kernel,
discovery, routes, balancing, TLS and policies decided about it, and why.

Examples:
  meshctl why client -n shop web:80 -- GET /cart
  meshctl why deploy/client '->' db.data:5432
  meshctl why client to 10.0.3.7:8080 -o json

Exit codes: 0 admitted (whatever the application answers) or not through the mesh, 1 refused or
failed.";

/// Longer than an operator waits.
const MAX_TIMEOUT: Duration = Duration::from_secs(120);

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = mesh_core::units::parse_duration(text).map_err(|error| error.to_string())?;
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        Err(format!(
            "expected more than 0 and at most {} s",
            MAX_TIMEOUT.as_secs()
        ))
    } else {
        Ok(timeout)
    }
}

impl Args {
    /// Returns the words before `--`.
    fn words(&self) -> Vec<String> {
        let further = [&self.second, &self.third].into_iter().flatten();
        std::iter::once(&self.client)
            .chain(further)
            .cloned()
            .collect()
    }
}

/// The document of `-o json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    client: String,
    target: &'a str,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    #[serde(flatten)]
    report: &'a Report,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let question = Question::parse(&args.words(), &args.request, args.allow_unsafe)?;
    let mesh = Mesh::find(global).await?;
    let mut progress = Progress::new("following the connection");
    let facts = progress.run(gather::facts(&mesh, &question, args.timeout, global));
    let facts = Box::pin(facts).await?;
    progress.clear();
    let report = report::evaluate(&facts);
    match args.output {
        Format::Json => output::json("Why", &document(&facts, &report))?,
        Format::Table => output::text(&render::text(&title(&facts), &report))?,
    }
    conclude(&report)
}

/// Returns the verdict as the result of the command.
fn conclude(report: &Report) -> anyhow::Result<()> {
    match report.verdict.outcome {
        VerdictOutcome::Admitted | VerdictOutcome::Bypassed => Ok(()),
        VerdictOutcome::Refused | VerdictOutcome::Failed => Err(Failure::NegativeResult.into()),
    }
}

fn document<'a>(facts: &'a Facts, report: &'a Report) -> Document<'a> {
    Document {
        client: facts.client.name(),
        target: &facts.target.authority,
        address: facts.target.address.to_string(),
        request: request(facts),
        report,
    }
}

fn request(facts: &Facts) -> Option<String> {
    let request = facts.request.as_ref()?;
    Some(format!("{} {}", request.method, request.path))
}

fn title(facts: &Facts) -> String {
    let request = request(facts).map_or(String::new(), |request| format!("  {request}"));
    let note = facts.target.note.as_ref();
    let note = note.map_or(String::new(), |note| format!("  ({note})"));
    format!(
        "{} -> {}{request}{note}",
        facts.client.name(),
        facts.target.authority
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_has_bounds() {
        assert_eq!(parse_timeout("500ms").unwrap().as_millis(), 500);
        assert_eq!(parse_timeout("120s").unwrap(), MAX_TIMEOUT);
        for text in ["0s", "121s", "x"] {
            assert!(parse_timeout(text).is_err(), "{text}");
        }
    }

    /// An arrow and flags may be in any place before `--`.
    #[test]
    fn arrow_is_accepted_beside_flags() {
        use clap::Parser as _;
        for line in [
            "why client web -n shop -- GET /",
            "why -n shop client -> web -- GET /",
            "why client -n shop -> web -- GET /",
            "why client to web --timeout 1s -- GET /",
            "why client -> web -o json -- GET /",
        ] {
            let words = line.split(' ').map(str::to_owned);
            let args = crate::args::Args::try_parse_from(
                std::iter::once("meshctl".to_owned()).chain(words),
            );
            let args = args.unwrap_or_else(|error| panic!("{line}: {error}"));
            let crate::commands::Command::Why(args) = args.command else {
                panic!("{line} is another command");
            };
            let question = Question::parse(&args.words(), &args.request, false).unwrap();
            assert_eq!(question.client, "client", "{line}");
        }
    }
}
