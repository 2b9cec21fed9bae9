//! `meshctl machine check`: whether this machine, its membership of a mesh and the proxies of its
//! units work, without access to an API server.

use std::path::Path;

use super::not_enrolled;
use crate::commands::check::{self, Reporting};
use crate::gather::host;

const EXAMPLES: &str = "\
Examples:
  meshctl machine check                    all enrolled units
  meshctl machine check nginx.service
  meshctl machine check --wait 1m -o short
  meshctl check explain unit-token         explain a row and its repair";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Check {
    /// The unit whose proxy is checked; all enrolled ones if not set
    unit: Option<String>,
    #[command(flatten)]
    reporting: Reporting,
}

pub(super) async fn run(args: &Check, socket: &Path) -> anyhow::Result<()> {
    let gather = async || {
        let facts = Box::pin(host::facts(socket, args.unit.as_deref())).await;
        let is_missing = facts.host.units.as_ref().is_ok_and(Vec::is_empty);
        match &args.unit {
            Some(unit) if is_missing => Err(not_enrolled(unit, &facts.host.enrolled).into()),
            _ => Ok(facts),
        }
    };
    Box::pin(check::evaluate(gather, &args.reporting)).await
}
