//! `mesh-controller <command>`: parses the command line and runs a controller.

use std::process::ExitCode;

use clap::Parser;
use mesh_cluster::program;
use mesh_control_plane::config::{Cli, arguments};
use mesh_control_plane::daemon;

fn main() -> anyhow::Result<ExitCode> {
    let command = Cli::parse_from(arguments(std::env::args_os())).command;
    let log = command.log().clone();
    Ok(program::run(&log, daemon::run(command))?)
}
