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
    // Without a log there is nowhere to say what is wrong but the standard error that a failing
    // `main` writes to.
    log::init(Settings {
        filter: &filter(&service.log().log_level),
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

/// What was asked for, without what the library of the API server says of its own accord: every
/// caller of it reports failures itself, once and in words. Who names the library in the filter
/// gets it.
fn filter(asked: &str) -> String {
    const LIBRARY: [&str; 2] = ["kube_client", "kube_runtime"];
    let mut filter = asked.to_owned();
    for target in LIBRARY.iter().filter(|target| !asked.contains(**target)) {
        filter.push_str(&format!(",{target}=off"));
    }
    filter
}

fn run(service: Service) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(daemon::run(service))?)
}
