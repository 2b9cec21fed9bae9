//! `cargo xtask …`: every automation of this repository, in Rust. People, CI and the forge's
//! workflows call these commands and nothing else; `args` lists them.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: results on stdout, progress on stderr"
)]

mod args;
mod audit;
mod bench;
mod binaries;
mod bpf_toolchain;
mod clippy;
mod cluster;
mod command;
mod demo;
mod ebpf;
mod fmt;
mod fuzz;
mod image;
mod interrupt;
mod lab;
mod progress;
mod setup;
mod stage;
mod suites;
mod test;
mod test_apps;
mod tidy;
mod workspace;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Context;
use clap::Parser;

use args::{Args, Task};

fn main() -> ExitCode {
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
        Task::Ci => return test::run(&root, &args::TestOptions::default()),
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
        Task::Demo(options) => return demo::run(&root, options),
        Task::Bench(options) => return bench::run(&root, &options),
        Task::Soak(options) => return bench::soak::run(&root, &options),
        Task::Fuzz(options) => return fuzz::run(&root, &options),
        Task::Audit { offline } => audit::run(&root, offline)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what was asked for with `--list`. A reader that has seen enough
/// (`cargo xtask … --list | head`) is no failure.
fn answer(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        match writeln!(out, "{line}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}
