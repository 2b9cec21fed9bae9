//! `meshctl machine`: hosts without Kubernetes. On such a host the commands ask its agent, on its
//! socket, to join a mesh and to redirect systemd units; they need neither a cluster nor a node. At
//! a workstation they admit machines to the mesh of a cluster.

mod admission;
mod check;
mod member;
mod why;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use mesh_core::machine::{UnitEnrolment, UnitRef, UnitStatus};
use mesh_core::node::{DEFAULT_SOCKET, Refusal, RefusalReason, Request, Response};
use serde::Serialize;

use crate::exit::Failure;
use crate::global::Global;
use crate::node::agent;
use crate::output::table::Table;
use crate::output::{self, Format};

const EXAMPLES: &str = "\
Examples:
  meshctl machine key
      on the machine: make its key, and print the fingerprint
  meshctl machine admit db-1 --key-sha256 FINGERPRINT --service-account shop/db > join.yaml
      at a workstation: admit the machine, and print the file that it joins with
  meshctl machine join join.yaml
  meshctl machine enrol nginx.service --service-account shop/db
  meshctl machine enrol db.service --annotation config.linkerd.io/skip-inbound-ports=22
  meshctl machine list
  meshctl machine status nginx.service
  meshctl machine check nginx.service
  meshctl machine why nginx.service web.shop:80
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
    /// Print the fingerprint of this machine's key, which is made if there is none
    Key(member::Key),
    /// Join this machine to a mesh
    Join(member::Join),
    /// Leave the mesh: withdraw the units with an identity, delete key and certificate
    Leave(member::Leave),
    /// Admit a machine to the mesh of a cluster, and print the file that it joins with
    Admit(Box<admission::Admit>),
    /// List the machines that a cluster admits
    Admissions(admission::Admissions),
    /// End the admission of a machine to a cluster
    Dismiss(admission::Dismiss),
    /// Redirect a service or slice to its proxy, or change the settings of an enrolled one
    Enrol(Enrol),
    /// List the enrolled units
    List(List),
    /// Show an enrolled unit or, without UNIT, the membership of this machine
    Status(Status),
    /// End the redirection of a unit
    Withdraw(Withdraw),
    /// Find out why this machine, its membership or the proxies of its units do not work
    Check(check::Check),
    /// Explain what decides about a connection of a unit or, without TARGET, who may connect to it
    Why(why::Why),
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
    /// The ServiceAccount whose identity its proxy gets from the mesh that this machine has joined
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service_account: Option<String>,
    /// Name of its ExternalWorkload, in the namespace of the ServiceAccount; MACHINE-NAME if not
    /// set
    #[arg(long, value_name = "NAME", requires = "service_account")]
    external_workload: Option<String>,
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
    unit: Option<String>,
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

/// The agent of this machine.
struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// Returns the response, or a refusal as an error.
    async fn call(&self, request: Request) -> anyhow::Result<Response> {
        answer(agent::request(&self.socket, &request).await?)
    }
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<()> {
    let Args { socket, command } = args;
    let agent = Agent { socket };
    let call = async |request: Request| agent.call(request).await;
    match command {
        Command::Key(key) => member::key(&key, &agent).await,
        Command::Join(join) => member::join(&join, &agent).await,
        Command::Leave(leave) => member::leave(&leave, &agent).await,
        Command::Admit(admit) => admission::admit(*admit, global).await,
        Command::Admissions(admissions) => admission::admissions(&admissions, global).await,
        Command::Dismiss(dismiss) => admission::dismiss(&dismiss, global).await,
        Command::Enrol(enrol) => {
            let format = enrol.output;
            match call(Request::EnrolUnit(enrolment(enrol))).await? {
                Response::Unit(status) => show(format, &status),
                other => Err(unexpected(&other)),
            }
        }
        Command::Why(args) => Box::pin(why::run(&args, &agent.socket)).await,
        Command::Check(args) => Box::pin(check::run(&args, &agent.socket)).await,
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
        Command::Status(Status { unit: None, output }) => member::status(output, &agent).await,
        Command::Status(Status {
            unit: Some(unit),
            output,
        }) => {
            let units = units(call(Request::Units).await?)?;
            show(output, &find(units, &unit)?)
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
        service_account: enrol.service_account,
        external_workload: enrol.external_workload,
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
    let names: Vec<String> = units.iter().map(|unit| unit.unit.clone()).collect();
    let found = units.into_iter().find(|unit| unit.unit == name);
    Ok(found.ok_or_else(|| not_enrolled(name, &names))?)
}

fn not_enrolled(name: &str, enrolled: &[String]) -> Failure {
    let enrolled = match enrolled {
        [] => "no unit is".to_owned(),
        names => names.join(", "),
    };
    Failure::Input(format!(
        "unit {name} is not enrolled on this host; enrolled: {enrolled}"
    ))
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
    if let Some(identity) = &unit.identity {
        for (field, value) in [
            ("service account", identity.service_account.clone()),
            ("external workload", identity.external_workload.clone()),
            ("identity", identity.name.clone().unwrap_or_default()),
            (
                "token until",
                identity.token_expires.map(time).unwrap_or_default(),
            ),
        ] {
            table.row(vec![field.to_owned(), value]);
        }
    }
    table.render()
}

/// Returns seconds since the Unix epoch as a time.
fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| seconds.to_string(), |time| time.to_string())
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
