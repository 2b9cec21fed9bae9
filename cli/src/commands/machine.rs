//! `meshctl machine`: the systemd units of this host that a node agent redirects, on a host without
//! Kubernetes. The commands ask the agent on its socket, and need neither a cluster nor a node.

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::bail;
use clap::Subcommand;
use mesh_core::machine::{UnitEnrolment, UnitRef, UnitStatus};
use mesh_core::node::{DEFAULT_SOCKET, Refusal, RefusalReason, Request, Response};
use serde::Serialize;

use crate::exit::Failure;
use crate::node::agent;
use crate::output::table::Table;
use crate::output::{self, Format};

const EXAMPLES: &str = "\
Examples:
  meshctl machine enrol nginx.service
  meshctl machine enrol db.service --annotation config.linkerd.io/skip-inbound-ports=22
  meshctl machine list
  meshctl machine status nginx.service
  meshctl machine withdraw nginx.service";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Socket of the node agent, which runs as `mesh-agent machine`
    #[arg(long, global = true, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "MESH_AGENT_SOCKET")]
    socket: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Redirect a service or slice to its proxy, or change the settings of an enrolled one
    Enrol(Enrol),
    /// List the enrolled units
    List(List),
    /// Show an enrolled unit
    Status(Status),
    /// End the redirection of a unit
    Withdraw(Withdraw),
}

#[derive(Debug, clap::Args)]
struct Enrol {
    /// The unit, as nginx.service
    unit: String,
    /// A setting of the redirection, as on a pod, such as
    /// config.linkerd.io/skip-inbound-ports=22; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_annotation)]
    annotation: Vec<(String, String)>,
    /// Path of the unit's cgroup below the root of the hierarchy; systemd is asked if not set
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Path of its proxy's cgroup; the one of mesh-proxy@NAME.service if not set
    #[arg(long, value_name = "PATH")]
    proxy_cgroup: Option<String>,
    /// Redirect the unit before its proxy listens, and refuse its connections until then
    #[arg(long)]
    immediately: bool,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
struct List {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
struct Status {
    /// The unit
    unit: String,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Debug, clap::Args)]
struct Withdraw {
    /// The unit
    unit: String,
}

#[derive(Serialize)]
struct Units {
    units: Vec<UnitStatus>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let Args { socket, command } = args;
    let call = async |request: Request| answer(agent::request(&socket, &request).await?);
    match command {
        Command::Enrol(enrol) => {
            let format = enrol.output;
            match call(Request::EnrolUnit(enrolment(enrol))).await? {
                Response::Unit(status) => show(format, &status),
                other => Err(unexpected(&other)),
            }
        }
        Command::List(list) => {
            let units = units(call(Request::Units).await?)?;
            match list.output {
                Format::Json => output::json("UnitList", &Units { units }),
                Format::Table if units.is_empty() => {
                    output::note("no unit of this host is enrolled");
                    Ok(())
                }
                Format::Table => output::text(&table(&units)),
            }
        }
        Command::Status(status) => {
            let units = units(call(Request::Units).await?)?;
            show(status.output, &find(units, &status.unit)?)
        }
        Command::Withdraw(Withdraw { unit }) => {
            let known = units(call(Request::Units).await?)?;
            find(known, &unit)?;
            let request = Request::WithdrawUnit(UnitRef { unit: unit.clone() });
            match call(request).await? {
                Response::Withdrawn => output::line(&format!(
                    "{unit} is not redirected any more; its proxy can be stopped"
                )),
                other => Err(unexpected(&other)),
            }
        }
    }
}

fn enrolment(enrol: Enrol) -> UnitEnrolment {
    UnitEnrolment {
        unit: enrol.unit,
        cgroup: enrol.cgroup,
        proxy_cgroup: enrol.proxy_cgroup,
        annotations: enrol.annotation.into_iter().collect(),
        immediately: enrol.immediately,
    }
}

fn parse_annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// Returns a refusal as an error with a suitable exit code.
fn answer(response: Response) -> anyhow::Result<Response> {
    let Response::Refused(Refusal { reason, message }) = response else {
        return Ok(response);
    };
    Err(match reason {
        RefusalReason::Invalid | RefusalReason::NotEnrolled => Failure::Input(message).into(),
        RefusalReason::TryAgain => Failure::TimedOut(message).into(),
        RefusalReason::Failed => anyhow::anyhow!(message),
    })
}

fn units(response: Response) -> anyhow::Result<Vec<UnitStatus>> {
    match response {
        Response::Units(units) => Ok(units),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(response: &Response) -> anyhow::Error {
    anyhow::anyhow!("unexpected response of the node agent (another version?): {response:?}")
}

fn find(units: Vec<UnitStatus>, name: &str) -> anyhow::Result<UnitStatus> {
    let names: Vec<&str> = units.iter().map(|unit| unit.unit.as_str()).collect();
    let enrolled = if names.is_empty() {
        "no unit is".to_owned()
    } else {
        names.join(", ")
    };
    match units.iter().find(|unit| unit.unit == name) {
        Some(unit) => Ok(unit.clone()),
        None => bail!(Failure::Input(format!(
            "unit {name} is not enrolled on this host; enrolled: {enrolled}"
        ))),
    }
}

fn show(format: Format, status: &UnitStatus) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json("Unit", status)?,
        Format::Table => output::text(&details(status))?,
    }
    for warning in &status.warnings {
        output::note(&format!("{}: {warning}", status.unit));
    }
    Ok(())
}

fn table(units: &[UnitStatus]) -> String {
    let mut table = Table::default()
        .left("UNIT STATE RUNNING PROXY LISTENING")
        .right("WARNINGS");
    for unit in units {
        table.row(vec![
            unit.unit.clone(),
            unit.state.to_string(),
            yes_or_no(unit.running),
            proxy(unit),
            addresses(unit),
            unit.warnings.len().to_string(),
        ]);
    }
    table.render()
}

fn details(unit: &UnitStatus) -> String {
    let ports = unit.ports;
    let connections: Vec<String> = unit
        .connections
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(verdict, count)| format!("{verdict}={count}"))
        .collect();
    let mut table = Table::default().left("FIELD VALUE");
    for (field, value) in [
        ("unit", unit.unit.clone()),
        ("state", unit.state.to_string()),
        ("running", yes_or_no(unit.running)),
        ("cgroups", unit.cgroups.join(" ")),
        ("proxy", proxy(unit)),
        ("proxy cgroup", unit.proxy_cgroup.clone()),
        (
            "proxy ports",
            format!(
                "inbound={} outbound={} admin={} control={}",
                ports.inbound, ports.outbound, ports.admin, ports.control
            ),
        ),
        (
            "redirect ports",
            format!("{}-{}", ports.redirect_first, ports.redirect_last),
        ),
        ("listening", addresses(unit)),
        ("connections", connections.join(" ")),
    ] {
        table.row(vec![field.to_owned(), value]);
    }
    table.render()
}

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn proxy(unit: &UnitStatus) -> String {
    if unit.proxy_listens {
        "listens"
    } else {
        "absent"
    }
    .to_owned()
}

fn addresses(unit: &UnitStatus) -> String {
    let addresses: Vec<String> = unit.listening.iter().map(ToString::to_string).collect();
    addresses.join(" ")
}
