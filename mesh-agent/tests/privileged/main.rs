//! Tests the kernel programs on the running kernel, with real sockets, processes and cgroups. Needs
//! root. Has its own `main`, because the workers of a test run this program again: a process
//! belongs to one cgroup as a whole, so application and proxy must be separate processes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test program with its own main, which clippy does not recognise as a test"
)]

mod actor;
mod daemon;
mod dial;
mod env;
mod identity;
mod lifecycle;
mod ports;
mod quota;
mod redirect;
mod selftest;
mod trace;

use std::process::ExitCode;
use std::{io, panic};

use mesh_agent::selftest::WORKER_ARGUMENT;

type Case = (&'static str, fn());

const CASES: &[&[Case]] = &[
    selftest::CASES,
    redirect::CASES,
    identity::CASES,
    lifecycle::CASES,
    ports::CASES,
    quota::CASES,
    trace::CASES,
    dial::CASES,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == WORKER_ARGUMENT => end(mesh_agent::selftest::worker(rest)),
        Some((first, rest)) if first == actor::ARGUMENT => end(actor::run_actor(rest)),
        _ => run(&arguments),
    }
}

fn end(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the cases whose names contain one of the arguments that are not options, all without any;
/// with `--exact` those that have such a name. `--list` prints the names.
fn run(arguments: &[String]) -> ExitCode {
    let (options, names): (Vec<&String>, Vec<&String>) = arguments
        .iter()
        .partition(|argument| argument.starts_with('-'));
    let has = |option: &str| options.iter().any(|given| *given == option);
    if has("--list") {
        for (name, _) in CASES.iter().copied().flatten() {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: the kernel programs can be loaded by root only");
        return ExitCode::SUCCESS;
    }
    if let Err(error) = mesh_agent::ebpf::Object::open(None) {
        println!("skipped: {error}");
        return ExitCode::SUCCESS;
    }
    let is_wanted = |name: &str| {
        names.is_empty()
            || names.iter().any(|wanted| {
                if has("--exact") {
                    name == *wanted
                } else {
                    name.contains(wanted.as_str())
                }
            })
    };
    let mut failed = 0;
    for (name, case) in CASES.iter().copied().flatten() {
        if !is_wanted(name) {
            continue;
        }
        println!("test {name} ...");
        // The panic's message has been printed already.
        let passed = panic::catch_unwind(case).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
