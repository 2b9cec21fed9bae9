//! `meshctl diagnostics heartbeat`: shows the report of `mesh-controller heartbeat`, and whether
//! and where it is sent.

mod gather;
mod sending;

use mesh_k8s::heartbeat::{Absence, Receiver, Report};
use serde::Serialize;

use self::sending::Sending;
use crate::exit::Failure;
use crate::mesh::Mesh;
use crate::output::table::Table;
use crate::output::{self, Format, printable, printable_lines};

const EXAMPLES: &str = "\
Examples:
  meshctl diagnostics heartbeat
  meshctl diagnostics heartbeat -o json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// The JSON document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Heartbeat<'a> {
    #[serde(flatten)]
    sending: &'a Sending,
    /// The URL of the request, if a report is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    parameters: Vec<Row<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    name: &'a str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    /// Why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    meaning: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    Sent,
    LeftOut,
    /// This program could not read it; the controller may.
    Unknown,
}

pub(super) async fn run(mesh: Mesh, args: &Args) -> anyhow::Result<()> {
    let cluster = match mesh {
        Mesh::Cluster(cluster) => cluster,
        Mesh::Local(node) => {
            return Err(Failure::Input(format!(
                "the local node {} sends no reports; --context NAME selects a cluster",
                node.paths.name()
            ))
            .into());
        }
    };
    let values = cluster.values().await?;
    let sending = sending::of(&values, gather::cron_job(&cluster).await?.as_ref());
    let report = gather::report(cluster, &values).await;
    let heartbeat = document(&sending, &report);
    match args.output {
        Format::Json => output::json("Heartbeat", &heartbeat),
        Format::Table => output::text(&render(&heartbeat)),
    }
}

fn document<'a>(sending: &'a Sending, report: &'a Report) -> Heartbeat<'a> {
    let request = match sending {
        Sending::On { url, .. } => {
            let receiver = url.parse::<Receiver>().ok();
            receiver.map(|receiver| receiver.with_report(report))
        }
        Sending::Off { .. } => None,
    };
    let parameters = report.parameters().iter().map(|parameter| {
        let (status, reason) = match &parameter.value {
            Ok(_) => (Status::Sent, None),
            Err(Absence::LeftOut(reason)) => (Status::LeftOut, Some(reason.clone())),
            Err(Absence::Unread(reason)) => (Status::Unknown, Some(reason.clone())),
        };
        Row {
            name: &parameter.name,
            status,
            value: parameter.value.as_deref().ok(),
            reason,
            meaning: parameter.meaning,
        }
    });
    Heartbeat {
        sending,
        request,
        parameters: parameters.collect(),
    }
}

fn render(heartbeat: &Heartbeat<'_>) -> String {
    let head = match heartbeat.sending {
        Sending::On { url, schedule } => {
            format!("A report is sent to {url} (schedule: {schedule}).")
        }
        Sending::Off { reason, remedy } => {
            format!("No report is sent: {reason}.\nTo have it sent: {remedy}")
        }
    };
    let mut text = format!("{}\n", printable_lines(&head));
    if let Some(request) = &heartbeat.request {
        text += &format!("GET {}\n", printable(request));
    }
    text += "\n";
    let is_sent = |row: &&Row<'_>| row.status == Status::Sent;
    let mut table = Table::default().left("PARAMETER VALUE MEANING");
    for row in heartbeat.parameters.iter().filter(is_sent) {
        table.row(vec![
            printable(row.name),
            printable(row.value.unwrap_or_default()),
            row.meaning.to_owned(),
        ]);
    }
    text += &table.render();
    for (status, title) in [
        (Status::LeftOut, "Left out of the report:"),
        (
            Status::Unknown,
            "Not readable from here; the report has what the Job can read:",
        ),
    ] {
        let rows = heartbeat.parameters.iter();
        let rows: Vec<&Row<'_>> = rows.filter(|row| row.status == status).collect();
        if rows.is_empty() {
            continue;
        }
        text += &format!("\n{title}\n");
        let mut table = Table::default().left("PARAMETER REASON");
        for row in rows {
            let reason = row.reason.as_deref().unwrap_or_default();
            table.row(vec![printable(row.name), printable(reason)]);
        }
        text += &table.render();
    }
    text
}

#[cfg(test)]
mod tests;
