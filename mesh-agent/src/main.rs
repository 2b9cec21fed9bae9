//! `mesh-agent`: parses the command line, then runs the daemon, or one of the commands beside it.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::{env, io};

use anyhow::Context;
use clap::Parser;
use mesh_agent::config::{Args, Command, Config, MachineArgs};
use mesh_agent::init::finish;
use mesh_agent::{daemon, dial, host, selftest, trace};
use mesh_runtime::log;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    // The self-test runs this program again as single-threaded workers.
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == selftest::WORKER_ARGUMENT => {
            finish(selftest::worker(rest).map_err(anyhow::Error::from))
        }
        _ => execute(Args::parse()),
    }
}

fn execute(args: Args) -> ExitCode {
    let Args { config, command } = args;
    match command {
        None => finish(run_daemon(config)),
        Some(Command::Machine(machine)) => finish(run_machine(config, machine)),
        Some(Command::Uninstall { keep_plugin }) => finish(uninstall(&config, keep_plugin)),
        Some(Command::Dial(dial)) => print_end(dial::run(&config.socket, &dial)),
        Some(Command::Trace(trace)) => print_end(trace::run(&config.socket, &trace)),
    }
}

/// Ends a command whose standard output belongs to its caller.
fn print_end(result: Result<(), impl Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without standard error the exit code has to suffice.
            let _ = writeln!(io::stderr(), "{}", log::chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn uninstall(config: &Config, keep_plugin: bool) -> anyhow::Result<()> {
    init_log(config)?;
    daemon::uninstall(config, keep_plugin)
}

fn run_daemon(config: Config) -> anyhow::Result<()> {
    let filter = init_log(&config)?;
    if let Err(error) = host::enter_cgroup_namespace() {
        tracing::warn!(
            %error,
            "Cannot enter the node's cgroup namespace (it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE), so that proxies which already run are not recognised"
        );
    }
    runtime()?.block_on(daemon::run(config, filter))
}

fn run_machine(config: Config, machine: MachineArgs) -> anyhow::Result<()> {
    let filter = init_log(&config)?;
    runtime()?.block_on(daemon::machine::run(config, machine, filter))
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

fn init_log(config: &Config) -> anyhow::Result<log::FilterHandle> {
    Ok(log::init(log::Settings {
        filter: &without_kube_client(&config.log_level),
        format: config.log_format,
        aliases: &[],
    })?)
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
