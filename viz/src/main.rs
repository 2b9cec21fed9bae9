//! `mesh-viz <command>`: parses the command line and runs a part of the viz extension.

use std::process::ExitCode;

use clap::Parser;
use mesh_cluster::program;
use mesh_viz::config::Cli;
use mesh_viz::daemon;

fn main() -> anyhow::Result<ExitCode> {
    let command = Cli::parse().command;
    let log = command.log().clone();
    Ok(program::run(&log, daemon::run(command))?)
}
