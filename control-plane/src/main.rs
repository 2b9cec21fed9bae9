//! `mesh-controller <service>`: parse, log, run.

use std::process::ExitCode;

use clap::Parser;
use mesh_control_plane::{config::Cli, daemon};
use mesh_runtime::{
    build_info::BuildInfo,
    log::{self, Settings},
};

fn main() -> ExitCode {
    let service = Cli::parse().service;
    let settings = Settings {
        filter: &service.log().log_level,
        format: service.log().log_format,
        aliases: &[("linkerd", "mesh")],
    };
    if let Err(error) = log::init(settings) {
        return fail(&anyhow::Error::new(error));
    }
    tracing::info!(build = %BuildInfo::CURRENT, "Starting");
    match run(service) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn run(service: mesh_control_plane::config::Service) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(daemon::run(service))?)
}

/// The error and all it comes from, in one line.
fn fail(error: &anyhow::Error) -> ExitCode {
    tracing::error!("{error:#}");
    #[expect(
        clippy::print_stderr,
        reason = "the log may be what could not be set up"
    )]
    if !tracing::event_enabled!(tracing::Level::ERROR) {
        eprintln!("mesh-controller: {error:#}");
    }
    ExitCode::FAILURE
}
