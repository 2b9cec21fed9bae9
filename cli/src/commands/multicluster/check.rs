//! `meshctl multicluster check`: whether links to other clusters work, in the form of `meshctl
//! check`.

use std::time::Duration;

use anyhow::bail;

use super::cluster;
use crate::commands::check::{self, Reporting};
use crate::exit::Failure;
use crate::facts::Mode;
use crate::global::Global;
use crate::mesh::Mesh;

const EXAMPLES: &str = "\
Examples:
  meshctl multicluster check
  meshctl multicluster check --wait 2m -o short    after clusters were linked";

/// Check whether links to other clusters work
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Longest time for the responses of another cluster, and of a mirror controller (10s, 2m)
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = mesh_core::units::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    reporting: Reporting,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    if global.namespace.is_some() {
        let text = "-n has no effect on `meshctl multicluster check`, which checks the Links of all namespaces: leave it out";
        bail!(Failure::Input(text.to_owned()));
    }
    let mesh = Mesh::Cluster(Box::new(cluster(global).await?));
    let mode = Mode::Multicluster {
        timeout: args.timeout,
    };
    Box::pin(check::report(Some(&mesh), mode, &args.reporting, global)).await
}
