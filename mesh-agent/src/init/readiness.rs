//! `linkerd-await`: waits until the pod's proxy is ready, then exits or executes another program.
//! With `--shutdown` it runs the program as a child and shuts the proxy down afterwards, as Jobs
//! need when the proxy is not a native sidecar.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{self, ExitCode, ExitStatus};
use std::time::Duration;
use std::{env, io};

use clap::Parser;
use mesh_core::units::parse_duration;
use mesh_runtime::signal::Termination;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::{VERSION, print_error};

/// `EX_UNAVAILABLE` and `EX_OSERR` of `sysexits.h`, as Linkerd's program uses them.
const EX_UNAVAILABLE: u8 = 69;
const EX_OSERR: u8 = 71;
/// After this time the request to the admin server is retried.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// A non-empty value of either skips the waiting.
const DISABLING_VARIABLES: [&str; 2] = ["LINKERD_AWAIT_DISABLED", "LINKERD_DISABLED"];
/// Limit of a response: only its first line, which is shorter, is read.
const MAX_RESPONSE_BYTES: u64 = 1024;

/// Waits until the pod's proxy is ready, then runs a program, if one is given.
#[derive(Debug, Parser)]
#[command(name = "linkerd-await", version = VERSION.as_str(), max_term_width = 100)]
pub(super) struct Args {
    /// Port of the proxy's admin server
    #[arg(short, long, default_value_t = 4191)]
    port: u16,
    /// How long to wait between two requests
    #[arg(short, long, default_value = "1s", value_parser = parse_duration)]
    backoff: Duration,
    /// Fail when the proxy is not ready after this time; without it, wait indefinitely
    #[arg(short, long, value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Shut the proxy down when the program has exited
    #[arg(short = 'S', long, requires = "command")]
    shutdown: bool,
    /// Print a message when an environment variable skips the waiting
    #[arg(short, long, env = "LINKERD_AWAIT_VERBOSE")]
    verbose: bool,
    /// The program to run once the proxy is ready, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: Args) -> ExitCode {
    let variable = DISABLING_VARIABLES
        .into_iter()
        .find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    if let Some(variable) = variable {
        if args.verbose {
            print_error(&format!("not waiting for the proxy: {variable} is set"));
        }
        return exec(&args.command);
    }
    match wait_and_run(&args) {
        NextStep::Exit(code) => code,
        NextStep::Exec => exec(&args.command),
    }
}

enum NextStep {
    Exit(ExitCode),
    /// Execute the program in this process, which then receives the signals.
    Exec,
}

#[tokio::main(flavor = "current_thread")]
async fn wait_and_run(args: &Args) -> NextStep {
    let ready = until_ready(args.port, args.backoff);
    let is_ready = match args.timeout {
        None => {
            ready.await;
            true
        }
        Some(limit) => tokio::time::timeout(limit, ready).await.is_ok(),
    };
    if !is_ready {
        let limit = args.timeout.unwrap_or_default();
        print_error(&format!(
            "the proxy's admin server on port {} did not report ready within {limit:?}",
            args.port
        ));
        return NextStep::Exit(ExitCode::from(EX_UNAVAILABLE));
    }
    if !args.shutdown {
        return NextStep::Exec;
    }
    let ended = run_child(&args.command).await;
    // On failure the proxy has exited, or does not allow it, which its own log reports.
    if let Err(error) = send_request(args.port, "POST", "/shutdown").await {
        print_error(&format!("cannot shut the proxy down: {error}"));
    }
    NextStep::Exit(match ended {
        Ok(status) => exit_code(status),
        Err(error) => {
            print_error(&format!("cannot run {}: {error}", name(&args.command)));
            ExitCode::from(EX_OSERR)
        }
    })
}

async fn until_ready(port: u16, backoff: Duration) {
    loop {
        let result =
            tokio::time::timeout(RESPONSE_TIMEOUT, send_request(port, "GET", "/ready")).await;
        if matches!(result, Ok(Ok(200..=299))) {
            return;
        }
        tokio::time::sleep(backoff).await;
    }
}

/// Sends one request to the admin server and returns the status of its response.
async fn send_request(port: u16, method: &str, path: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream
        .take(MAX_RESPONSE_BYTES)
        .read_to_end(&mut response)
        .await?;
    status(&response).ok_or_else(|| io::Error::other("the response is not HTTP"))
}

fn status(response: &[u8]) -> Option<u16> {
    let line = response.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next()?.starts_with("HTTP/1.").then_some(())?;
    words.next()?.parse().ok()
}

/// Runs the program until it exits, and forwards termination signals to it.
async fn run_child(command: &[OsString]) -> io::Result<ExitStatus> {
    let mut termination = Termination::listen()?;
    let mut child = Command::new(name_of(command)?)
        .args(&command[1..])
        .spawn()?;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            signal = termination.received() => {
                let signal = match signal {
                    "SIGINT" => Signal::SIGINT,
                    _ => Signal::SIGTERM,
                };
                // The child has no id once it has exited, which the other branch handles.
                if let Some(pid) = child.id() {
                    kill(Pid::from_raw(pid.cast_signed()), signal)?;
                }
            }
        }
    }
}

/// Executes the program in this process; returns only when that fails, or without a program.
fn exec(command: &[OsString]) -> ExitCode {
    let Ok(program) = name_of(command) else {
        return ExitCode::SUCCESS;
    };
    let error = process::Command::new(program).args(&command[1..]).exec();
    print_error(&format!("cannot run {}: {error}", name(command)));
    ExitCode::from(EX_OSERR)
}

fn name_of(command: &[OsString]) -> io::Result<&OsString> {
    command
        .first()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

fn name(command: &[OsString]) -> String {
    command
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Returns the program's exit code, or the one that a shell returns for a program terminated by a
/// signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    const SIGNALLED: i32 = 128;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::from(EX_OSERR), ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linkerd_arguments_are_parsed() {
        let args = Args::parse_from(["linkerd-await", "--timeout=2m", "--port=4191"]);
        assert_eq!(args.timeout, Some(Duration::from_secs(120)));
        let args = Args::parse_from(["linkerd-await", "-S", "--", "sh", "-c", "true"]);
        assert!(args.shutdown);
        assert_eq!(args.command, ["sh", "-c", "true"]);
        assert!(Args::try_parse_from(["linkerd-await", "--shutdown"]).is_err());
    }

    #[test]
    fn status_is_parsed_from_http_responses_only() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503 Service Unavailable\r\n"), Some(503));
        assert_eq!(status(b"SSH-2.0-x\r\n"), None);
        assert_eq!(status(b""), None);
    }
}
