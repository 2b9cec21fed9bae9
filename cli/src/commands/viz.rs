//! `meshctl viz`: live traffic of a cluster, from the metrics API of the viz extension.
//! `meshctl stat` shows traffic without the extension, and of a local node.

mod cells;
mod resources;
mod source;
mod stat;

use clap::{Subcommand, ValueEnum};

use self::source::Extension;
use crate::global::Global;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    extension: Extension,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the success rate, requests per second and latency of workloads
    Stat(Box<stat::Args>),
}

/// The output format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    Table,
    /// With further columns
    Wide,
    Json,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    match &args.command {
        Command::Stat(stat) => stat::run(stat, &args.extension, global).await,
    }
}
