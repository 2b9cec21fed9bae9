//! `mesh-bench`: what `cargo xtask bench`, `soak` and `test --suites` run.
//!
//! `benchmark` (with `soak`) measures and `suites` tests a pair of proxies in pods on this machine,
//! which `testbed` makes. The other commands are the programs around the proxies that no
//! distribution packages, and are started by the first ones.
//!
//! `authority` makes certificates for every system under test. `control` is a control plane whose
//! answers are known beforehand and come at once, so that a measurement of the proxy measures the
//! proxy. `serve` are the applications, `load` their clients, and `attack` clients that mean harm.
//! What a command found out is one JSON object on one line of standard output; the commands that
//! started them read nothing else.

mod attack;
mod authority;
mod benchmark;
mod control;
mod load;
mod serve;
mod suites;
mod testbed;

use std::{io::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use xtask::workspace;

#[derive(Debug, Parser)]
#[command(
    name = "mesh-bench",
    about = "Measurements of the proxy, and the programs around it"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure what the proxy costs, beside Envoy, HAProxy and nothing at all
    Benchmark(benchmark::BenchmarkOptions),
    /// Load our proxies for an hour while their certificates and trust anchors change; nothing may
    /// fail or grow
    Soak(benchmark::soak::SoakOptions),
    /// Run the suites against the proxy
    Suites(suites::SuitesOptions),
    /// Make a trust anchor, an issuer and a leaf for each name
    Authority(authority::Options),
    /// Answer proxies as a control plane does
    Control(control::Options),
    /// Be the applications behind the proxies
    Serve(serve::Options),
    /// Be their clients
    #[command(subcommand)]
    Load(load::Load),
    /// Be clients that mean harm
    Attack(attack::Options),
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(status) => status,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Benchmark(options) => return benchmark::run(&workspace::root()?, &options),
        Command::Soak(options) => return benchmark::soak::run(&workspace::root()?, &options),
        Command::Suites(options) => return suites::run(&workspace::root()?, &options),
        Command::Authority(options) => authority::generate(&options),
        Command::Control(options) => runtime()?.block_on(control::run(options)),
        Command::Serve(options) => runtime()?.block_on(serve::run(options)),
        Command::Load(load) => runtime()?.block_on(load.run()),
        Command::Attack(options) => runtime()?.block_on(attack::run(options)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// One thread, like the proxies under test: the benchmark gives each side of them one CPU.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

/// Tells a person what is wrong.
fn print_error(error: &anyhow::Error) {
    // Nobody else can be told that this cannot be written.
    let _written = writeln!(std::io::stderr(), "error: {error:#}");
}

/// Says one thing on standard output.
fn print_event(event: &serde_json::Value) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{event}")?;
    stdout.flush().context("write to standard output")
}
