//! `cargo xtask …`: every automation of this repository, in Rust. Developers, CI and workflows use
//! only these commands; `args` lists them.
//!
//! `mesh-bench` and `mesh-demo` use the public modules to build and run programs and to install
//! packages.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: results on stdout, progress on stderr"
)]

mod args;
mod audit;
pub mod binaries;
mod bpf_toolchain;
mod clippy;
pub mod cluster;
pub mod command;
mod demo;
pub mod docker_archive;
pub mod duration;
mod ebpf;
mod fmt;
mod fuzz;
mod go_build;
mod image;
pub mod interrupt;
mod measurement;
mod mutants;
pub mod package;
pub mod progress;
pub mod seed;
pub mod setup;
pub mod stage;
mod test;
mod test_apps;
mod tidy;
pub mod workspace;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use args::{Args, Task, TestOptions};

/// Runs the command of the command line.
pub fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(end) => end,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    let root = workspace::root()?;
    match task {
        Task::Setup(options) => setup::run(&root, options)?,
        Task::Test(options) => return test::run(&root, &options),
        Task::Ci => return test::run(&root, &TestOptions::default()),
        Task::Tidy => tidy::run(&root)?,
        Task::Fmt { check } => fmt::run(&root, check)?,
        Task::Ebpf => {
            let object = ebpf::build(&root).context("build the kernel programs")?;
            println!("{}", object.display());
            let other = ebpf::build_other(&root).context("build the kernel programs again")?;
            println!("{} (for the tests of an upgrade)", other.display());
        }
        Task::Build { dev } => binaries::run(&root, dev)?,
        Task::Image(options) => image::run(&root, &options)?,
        Task::Package(options) => package::run(&root, &options)?,
        Task::Demo(options) => return demo::run(&root, &options),
        Task::Bench(options) => return measurement::run(&root, "benchmark", &options.options),
        Task::Soak(options) => return measurement::run(&root, "soak", &options.options),
        Task::Chaos(options) => return measurement::check(&root, "mesh-chaos", &options.options),
        Task::Simulate(options) => return measurement::simulate(&root, &options.options),
        Task::Fuzz(options) => return fuzz::run(&root, &options),
        Task::Mutants(options) => return mutants::run(&root, &options),
        Task::Audit { offline } => audit::run(&root, offline)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints lines to standard output. A reader that closes it (`cargo xtask … --list | head`) is not
/// an error.
///
/// # Errors
///
/// Standard output cannot be written to for another reason.
pub fn print_lines(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        match writeln!(out, "{line}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}
