//! `mesh-controller <command>`: parses the command line, initializes the log and runs a controller.

use std::process::ExitCode;

use clap::Parser;
use mesh_control_plane::config::{Cli, Command};
use mesh_control_plane::daemon;
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::log::{self, Settings};

fn main() -> anyhow::Result<ExitCode> {
    let command = Cli::parse().command;
    // Without a log, the error is only written to standard error by a failing `main`.
    log::init(Settings {
        filter: &filter(&command.log().log_level),
        format: command.log().log_format,
        aliases: &[("linkerd", "mesh")],
    })?;
    tracing::info!(build = %BuildInfo::CURRENT, "Starting");
    match run(command) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!("{error:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Returns the configured filter without the messages of kube, because its callers log failures
/// themselves. A filter that names a target of kube enables it.
fn filter(configured: &str) -> String {
    const KUBE: [&str; 2] = ["kube_client", "kube_runtime"];
    let mut filter = configured.to_owned();
    for target in KUBE.iter().filter(|target| !configured.contains(**target)) {
        filter.push_str(&format!(",{target}=off"));
    }
    filter
}

fn run(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(daemon::run(command))?)
}
