//! A program independent of the mesh: the applications, servers and stand-in proxies of the
//! redirection tests.
//!
//! The tests start it inside the network namespace and cgroup of a pod
//! (`probe enter … -- COMMAND`). Each command prints one JSON line per event on standard output,
//! which is all that the tests read. It uses ordinary system calls only: if `SO_ORIGINAL_DST` is
//! right here, it is right for any program.

use std::process::ExitCode;

mod client;
mod enter;
mod listen;
mod many_connections;
mod packet;
mod raw;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["enter", rest @ ..] => enter::run(rest),
        ["listen", rest @ ..] => listen::run(rest),
        ["connect", rest @ ..] => client::connect(rest),
        ["bind", rest @ ..] => client::bind(rest),
        ["options", rest @ ..] => client::options(rest),
        ["churn", rest @ ..] => client::churn(rest),
        ["two-sources", rest @ ..] => client::two_sources(rest),
        ["udp", rest @ ..] => client::udp(rest),
        ["many-connections", rest @ ..] => many_connections::run(rest),
        ["syn", rest @ ..] => packet::run(rest),
        other => Err(anyhow::anyhow!("unknown command {other:?}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            event(&[("error", format!("{error:#}").into())]);
            ExitCode::FAILURE
        }
    }
}

/// Prints one event.
#[expect(
    clippy::print_stdout,
    reason = "the events are the output of the program"
)]
fn event(fields: &[(&str, serde_json::Value)]) {
    let object: serde_json::Map<String, serde_json::Value> = fields
        .iter()
        .map(|(k, v)| ((*k).to_owned(), v.clone()))
        .collect();
    println!("{}", serde_json::Value::Object(object));
}

/// Returns the value of `--name VALUE`.
fn flag<'a>(args: &[&'a str], name: &str) -> Option<&'a str> {
    args.iter()
        .position(|arg| *arg == name)
        .and_then(|at| args.get(at + 1))
        .copied()
}

/// Returns whether `--name` is present.
fn has(args: &[&str], name: &str) -> bool {
    args.contains(&name)
}
