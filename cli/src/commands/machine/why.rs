//! `meshctl machine why`: what decides about connections of a unit, and about connections to it.

use std::path::Path;

use super::not_enrolled;
use crate::commands::why;
use crate::exit::Failure;
use crate::gather::host;
use crate::output::Format;

const HELP: &str = "\
With TARGET it says whether the unit's connection is redirected, by which setting, and what
discovery, routes, TLS and the policy of the server decide for its proxy. Without TARGET it says
who may connect to the unit, and counts the connections so far by verdict. Nothing is sent.

Examples:
  meshctl machine why nginx.service
  meshctl machine why nginx.service web.shop:80
  meshctl machine why nginx.service 10.0.3.7:8080 -o json

Exit codes: 0 admitted or not through the mesh, 1 refused or failed.";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Why {
    /// The unit
    unit: String,
    /// IP address, or Service (NAME.NAMESPACE) that this machine can resolve, with :PORT
    target: Option<String>,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

pub(super) async fn run(args: &Why, socket: &Path) -> anyhow::Result<()> {
    let facts = Box::pin(host::facts(socket, Some(&args.unit))).await;
    let units = facts.host.units.as_ref();
    let units = units.map_err(|reason| Failure::Unreachable(reason.clone()))?;
    let unit = units.first();
    let unit = unit.ok_or_else(|| not_enrolled(&args.unit, &facts.host.enrolled))?;
    match &args.target {
        Some(target) => Box::pin(why::unit::exchange(unit, target, socket, args.output)).await,
        None => Box::pin(why::unit::inbound(unit, args.output)).await,
    }
}
