//! `mesh-bench`: the program that `cargo xtask bench`, `soak` and `test --suites` run.
//!
//! `benchmark` (with `soak`) measures and `suites` tests a pair of proxies in pods on this machine,
//! which `testbed` creates. `gateway_api` tests a mesh on a cluster. The other commands are helper
//! programs that no distribution packages; `benchmark` and `suites` start them.
//!
//! `authority` issues certificates for every system under test. `control` is a control plane with
//! precomputed responses, so that its latency does not distort a measurement of the proxy.
//! `kube_api` serves the controllers their objects when they are measured. `collector` receives
//! spans, and `series` serves the series of many pods. `serve` runs the applications, `load` their
//! clients, and `attack` malicious clients. Each command prints its result as one JSON object on
//! one line of standard output; its parent process reads nothing else.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: results on stdout, progress on stderr"
)]

mod attack;
mod authority;
mod benchmark;
mod collector;
mod control;
mod gateway_api;
mod go_program;
mod kube_api;
mod load;
mod series;
mod serve;
mod suites;
mod testbed;
mod tls;
mod turn;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use xtask::workspace;

#[derive(Debug, Parser)]
#[command(
    name = "mesh-bench",
    about = "Benchmarks and test suites for the proxy, and their helper programs"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the cost of the proxy with Envoy, HAProxy and a direct connection
    Benchmark(benchmark::BenchmarkOptions),
    /// Load a pair of proxies for an hour while certificates and trust anchors rotate; no request
    /// may fail and no resource may grow
    Soak(benchmark::soak::SoakOptions),
    /// Run test suites against the proxy
    Suites(suites::SuitesOptions),
    /// Run the Gateway API's conformance tests on the cluster of MESH_TEST_CLUSTER
    GatewayApi(gateway_api::GatewayApiOptions),
    /// Generate a trust anchor, an issuer and a leaf certificate for each name
    Authority(authority::Options),
    /// Run a control plane for the proxies
    Control(control::Options),
    /// Run a scripted front of a Kubernetes API server for the controllers
    KubeApi(kube_api::Options),
    /// Run scripted API servers of linked clusters, and of a cluster that links them
    LinkedClusters(kube_api::linked::Options),
    /// Run a collector of spans
    Collector(collector::Options),
    /// Serve the series of many pods to Prometheus
    Series(series::Options),
    /// Run the applications behind the proxies
    Serve(serve::Options),
    /// Run clients that generate load
    #[command(subcommand)]
    Load(load::Load),
    /// Run malicious clients
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
        Command::GatewayApi(options) => return gateway_api::run(&workspace::root()?, &options),
        Command::Authority(options) => authority::generate(&options),
        Command::Control(options) => runtime()?.block_on(control::run(options)),
        Command::KubeApi(options) => runtime()?.block_on(kube_api::run(options)),
        Command::LinkedClusters(options) => runtime()?.block_on(kube_api::linked::run(options)),
        Command::Collector(options) => runtime()?.block_on(collector::run(options)),
        Command::Series(options) => series::serve(&options),
        Command::Serve(options) => runtime()?.block_on(serve::run(options)),
        Command::Load(load) => runtime()?.block_on(load.run()),
        Command::Attack(options) => runtime()?.block_on(attack::run(options)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Single-threaded, like the proxies under test: the benchmark gives load and proxies one CPU each.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

/// Prints an error for the user.
fn print_error(error: &anyhow::Error) {
    // A failure to write to standard error cannot be reported.
    let _written = writeln!(std::io::stderr(), "error: {error:#}");
}

/// Prints an event as one line of JSON on standard output.
fn print_event(event: &serde_json::Value) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{event}")?;
    stdout.flush().context("write to standard output")
}
