//! `meshctl machine why`: the explanation of `meshctl why` for a systemd unit of this machine.
//! Nothing is sent to the target; the decisions are those that agent and controllers state.

use std::path::Path;

use serde::Serialize;

use super::gather::unit as gather;
use super::question::TargetName;
use super::report::{self, Report};
use super::{conclude, document, render, title};
use crate::facts::host::Unit;
use crate::output::{self, Format};

/// The document of `-o json` without a target.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InboundDocument<'a> {
    unit: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Explains a connection of the unit to a target.
pub(in crate::commands) async fn exchange(
    unit: &Unit,
    target: &str,
    socket: &Path,
    format: Format,
) -> anyhow::Result<()> {
    let target = TargetName::parse(target)?;
    let facts = Box::pin(gather::exchange(unit, &target, socket)).await?;
    let report = report::evaluate(&facts);
    match format {
        Format::Json => output::json("Why", &document(&facts, &report))?,
        Format::Table => output::text(&render::text(&title(&facts), &report))?,
    }
    conclude(&report)
}

/// Explains who may connect to the unit.
pub(in crate::commands) async fn inbound(unit: &Unit, format: Format) -> anyhow::Result<()> {
    let facts = Box::pin(gather::inbound(unit)).await;
    let report = report::inbound(unit, &facts);
    let name = unit.name();
    match format {
        Format::Json => {
            let report = &report;
            output::json("MachineWhy", &InboundDocument { unit: name, report })?;
        }
        Format::Table => output::text(&render::text(&format!("* -> {name}"), &report))?,
    }
    conclude(&report)
}
