//! `mesh-bench`: the programs around the proxies of `cargo xtask bench` and
//! `cargo xtask test --suites` that no distribution packages.
//!
//! `authority` makes certificates for every system under test. `control` is a control plane whose
//! answers are known beforehand and come at once, so that a measurement of the proxy measures the
//! proxy. `serve` are the applications, `load` their clients, and `attack` clients that mean harm.
//! What a command found out is one JSON object on one line of standard output; xtask reads nothing
//! else.

mod attack;
mod authority;
mod control;
mod load;
mod serve;

use std::{io::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "mesh-bench",
    about = "Programs around the proxies of `cargo xtask bench`"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Authority(options) => authority::make(&options),
        Command::Control(options) => runtime()?.block_on(control::run(options)),
        Command::Serve(options) => runtime()?.block_on(serve::run(options)),
        Command::Load(load) => runtime()?.block_on(load.run()),
        Command::Attack(options) => runtime()?.block_on(attack::run(options)),
    }
}

/// One thread, like the proxies under test: the benchmark gives each side of them one CPU.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

/// Tells a person what is wrong.
fn complain(error: &anyhow::Error) {
    // Nobody else can be told that this cannot be written.
    let _written = writeln!(std::io::stderr(), "error: {error:#}");
}

/// Says one thing on standard output.
fn say(event: &serde_json::Value) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{event}")?;
    stdout.flush().context("write to standard output")
}
