//! `linkerd-await`: waits until the pod's proxy is ready, then ends or becomes another program;
//! with `--shutdown` runs the program beside it and tells the proxy to end after it, as Jobs need
//! when the proxy is no native sidecar.

use std::{
    env,
    ffi::OsString,
    io,
    net::Ipv4Addr,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{self, ExitCode, ExitStatus},
    time::Duration,
};

use clap::Parser;
use mesh_core::units::parse_duration;
use mesh_runtime::signal::Termination;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

use super::{VERSION, complain};

/// `EX_UNAVAILABLE` and `EX_OSERR` of `sysexits.h`, as Linkerd's program exits.
const UNAVAILABLE: u8 = 69;
const OS_ERROR: u8 = 71;
/// An admin server that does not answer in this time is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Either of them, when it is not empty, switches the waiting off.
const SWITCHES: [&str; 2] = ["LINKERD_AWAIT_DISABLED", "LINKERD_DISABLED"];
/// An answer's first line is shorter, and nothing after it is of interest.
const ANSWER_MAX: u64 = 1024;

/// Waits until the pod's proxy is ready, then runs a program, if one is given.
#[derive(Debug, Parser)]
#[command(name = "linkerd-await", version = VERSION.as_str(), max_term_width = 100)]
pub(super) struct Args {
    /// Port of the proxy's admin server
    #[arg(short, long, default_value_t = 4191)]
    port: u16,
    /// How long to wait between two questions
    #[arg(short, long, default_value = "1s", value_parser = parse_duration)]
    backoff: Duration,
    /// Fail when the proxy is not ready after this time; wait for ever without it
    #[arg(short, long, value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Tell the proxy to shut down when the program has ended
    #[arg(short = 'S', long, requires = "command")]
    shutdown: bool,
    /// Say so when an environment variable switches the waiting off
    #[arg(short, long, env = "LINKERD_AWAIT_VERBOSE")]
    verbose: bool,
    /// The program to run once the proxy is ready, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: Args) -> ExitCode {
    let switch = SWITCHES
        .into_iter()
        .find(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    if let Some(switch) = switch {
        if args.verbose {
            complain(&format!("the proxy is not waited for: {switch} is set"));
        }
        return replace(&args.command);
    }
    match wait_and_wrap(&args) {
        Next::Exit(code) => code,
        Next::Become => replace(&args.command),
    }
}

enum Next {
    Exit(ExitCode),
    /// Become the program: it then gets the signals itself.
    Become,
}

#[tokio::main(flavor = "current_thread")]
async fn wait_and_wrap(args: &Args) -> Next {
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
        complain(&format!(
            "the proxy's admin server on port {} did not say it was ready within {limit:?}",
            args.port
        ));
        return Next::Exit(ExitCode::from(UNAVAILABLE));
    }
    if !args.shutdown {
        return Next::Become;
    }
    let ended = attend(&args.command).await;
    // A proxy that cannot be told is gone, or does not allow it: it says so in its own log.
    if let Err(error) = ask(args.port, "POST", "/shutdown").await {
        complain(&format!("the proxy cannot be told to shut down: {error}"));
    }
    Next::Exit(match ended {
        Ok(status) => exit_code(status),
        Err(error) => {
            complain(&format!("cannot run {}: {error}", name(&args.command)));
            ExitCode::from(OS_ERROR)
        }
    })
}

async fn until_ready(port: u16, backoff: Duration) {
    loop {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, ask(port, "GET", "/ready")).await;
        if matches!(asked, Ok(Ok(200..=299))) {
            return;
        }
        tokio::time::sleep(backoff).await;
    }
}

/// One question to the admin server; the status of its answer.
async fn ask(port: u16, method: &str, path: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
    status(&answer).ok_or_else(|| io::Error::other("the answer is not HTTP"))
}

/// The status code of an HTTP/1 answer.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    words.next()?.starts_with("HTTP/1.").then_some(())?;
    words.next()?.parse().ok()
}

/// Runs the program to its end and hands a request to end on to it.
async fn attend(command: &[OsString]) -> io::Result<ExitStatus> {
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
                // It has no id once it has ended, which the other branch sees.
                if let Some(pid) = child.id() {
                    kill(Pid::from_raw(pid.cast_signed()), signal)?;
                }
            }
        }
    }
}

/// Becomes the program; returns only when that fails, or when there is none.
fn replace(command: &[OsString]) -> ExitCode {
    let Ok(program) = name_of(command) else {
        return ExitCode::SUCCESS;
    };
    let error = process::Command::new(program).args(&command[1..]).exec();
    complain(&format!("cannot run {}: {error}", name(command)));
    ExitCode::from(OS_ERROR)
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

/// The program's own code; one that a signal ended counts as a shell counts it.
fn exit_code(status: ExitStatus) -> ExitCode {
    const SIGNALLED: i32 = 128;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::from(OS_ERROR), ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linkerd_and_its_users_write() {
        let args = Args::parse_from(["linkerd-await", "--timeout=2m", "--port=4191"]);
        assert_eq!(args.timeout, Some(Duration::from_secs(120)));
        let args = Args::parse_from(["linkerd-await", "-S", "--", "sh", "-c", "true"]);
        assert!(args.shutdown);
        assert_eq!(args.command, ["sh", "-c", "true"]);
        assert!(Args::try_parse_from(["linkerd-await", "--shutdown"]).is_err());
    }

    #[test]
    fn only_an_http_answer_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503 Service Unavailable\r\n"), Some(503));
        assert_eq!(status(b"SSH-2.0-x\r\n"), None);
        assert_eq!(status(b""), None);
    }
}
