//! `mesh-controller <service>`: parse, log, run.

use std::process::ExitCode;

use clap::Parser;
use mesh_control_plane::{
    config::{Cli, Service},
    daemon,
};
use mesh_runtime::{
    build_info::BuildInfo,
    log::{self, Settings},
};

fn main() -> anyhow::Result<ExitCode> {
    let service = Cli::parse().service;
    // Without a log there is nowhere to say what is wrong but the standard error that a failing `main` writes to.
    log::init(Settings {
        filter: &service.log().log_level,
        format: service.log().log_format,
        aliases: &[("linkerd", "mesh")],
    })?;
    tracing::info!(build = %BuildInfo::CURRENT, "Starting");
    match run(service) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            tracing::error!("{error:#}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn run(service: Service) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(daemon::run(service))?)
}
