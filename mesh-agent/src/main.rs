//! `mesh-agent`: parses the command line, then runs the daemon or uninstalls the mesh.

use std::env;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use mesh_agent::config::{Args, Command};
use mesh_agent::{daemon, host, selftest};
use mesh_runtime::log;

fn main() -> ExitCode {
    // The self-test runs this program again as single-threaded workers.
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == selftest::WORKER_ARGUMENT => {
            selftest::worker(rest).map_err(anyhow::Error::from)
        }
        _ => start(Args::parse()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> anyhow::Result<()> {
    let filter = log::init(log::Settings {
        filter: &without_kube_client(&args.config.log_level),
        format: args.config.log_format,
        aliases: &[],
    })?;
    if let Some(Command::Uninstall { keep_plugin }) = args.command {
        return daemon::uninstall(&args.config, keep_plugin);
    }
    if let Err(error) = host::enter_cgroup_namespace() {
        tracing::warn!(
            %error,
            "Cannot enter the node's cgroup namespace (it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE), so that proxies which already run are not recognised"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(daemon::run(args.config, filter))
}

/// Silences `kube_client`, which logs every failed attempt as an error for as long as the API
/// server is unreachable. The agent logs that once.
fn without_kube_client(filter: &str) -> String {
    if filter.contains("kube_client") {
        filter.to_owned()
    } else {
        format!("{filter},kube_client=off")
    }
}
