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
mod host;
mod identity;
mod lifecycle;
mod machine;
mod ports;
mod quota;
mod redirect;
mod selftest;
mod systemd;
mod trace;
mod units;

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
    units::CASES,
    machine::CASES,
    systemd::CASES,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == WORKER_ARGUMENT => end(mesh_agent::selftest::worker(rest)),
        Some((first, rest)) if first == actor::ARGUMENT => end(actor::run_actor(rest)),
        Some((first, rest)) if first == systemd::SERVICE => end(systemd::run_service(rest)),
        Some((first, _)) if first == systemd::PROXY => end(systemd::run_proxy()),
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
/// with `--exact` those that have such a name. `--list` prints all names. The output has the form
/// of Rust's test harness, so that the cases are counted.
fn run(arguments: &[String]) -> ExitCode {
    let (options, names): (Vec<&String>, Vec<&String>) = arguments
        .iter()
        .partition(|argument| argument.starts_with('-'));
    let has = |option: &str| options.iter().any(|given| *given == option);
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
    let all = CASES.iter().copied().flatten();
    if has("--list") {
        all.for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&Case> = all.filter(|(name, _)| is_wanted(name)).collect();
    if let Some(reason) = missing() {
        println!("\nsuccesses:\n");
        for (name, _) in &wanted {
            println!("---- {name} stdout ----\nskipped: {reason}\n");
        }
        print_result(wanted.len(), 0);
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, case) in &wanted {
        println!("test {name} ...");
        // The panic's message has been printed already.
        let passed = panic::catch_unwind(case).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += usize::from(!passed);
    }
    print_result(wanted.len() - failed, failed);
    ExitCode::from(u8::from(failed > 0))
}

/// Returns why the cases cannot run on this machine.
fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("the kernel programs can be loaded by root only".to_owned());
    }
    let object = mesh_agent::ebpf::Object::open(None);
    object.err().map(|error| error.to_string())
}

fn print_result(passed: usize, failed: usize) {
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored");
}
