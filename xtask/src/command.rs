//! Runs programs: collects the output, shows its last line as progress, and prints all of it only
//! if the program fails. Every task starts its programs here.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;

use anyhow::{Context, bail};

use crate::progress::Progress;

/// Capacity of the channel from the reader threads. A program that prints faster than lines are
/// handled blocks, and no line is lost.
const LINES_IN_FLIGHT: usize = 1024;

/// cargo reports progress with these lines: they would only hide the error they precede.
const CARGO_PROGRESS: [&str; 8] = [
    "Compiling ",
    "Checking ",
    "Downloading ",
    "Downloaded ",
    "Updating ",
    "Locking ",
    "Blocking ",
    "Adding ",
];

/// The exit status of a program and its output.
pub struct Finished {
    pub status: ExitStatus,
    pub lines: Vec<String>,
}

/// Runs a program; a failure is an error with its output.
pub fn run(title: &str, command: &mut Command) -> anyhow::Result<()> {
    let finished = observe(title, command, |_| ())?;
    if finished.status.success() {
        return Ok(());
    }
    for line in finished
        .lines
        .iter()
        .filter(|line| !is_cargo_progress(line))
    {
        eprintln!("{line}");
    }
    bail!("`{}`: {}", shown(command), finished.status)
}

/// Runs an interactive program and returns its exit code. A program killed by a signal has failed.
pub(crate) fn run_to_exit(command: &mut Command) -> anyhow::Result<ExitCode> {
    let status = command
        .status()
        .with_context(|| format!("start `{}`", shown(command)))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs a program, passes each line of output to `on_line`, and returns its exit status.
pub fn observe(
    title: &str,
    command: &mut Command,
    mut on_line: impl FnMut(&str),
) -> anyhow::Result<Finished> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start `{}`", shown(command)))?;

    let (sender, receiver) = mpsc::sync_channel(LINES_IN_FLIGHT);
    let readers = [
        child
            .stdout
            .take()
            .map(|stdout| read_lines(stdout, sender.clone())),
        child.stderr.take().map(|stderr| read_lines(stderr, sender)),
    ];

    let mut progress = Progress::new(title);
    let mut lines = Vec::new();
    loop {
        match receiver.recv_timeout(Progress::patience()) {
            Ok(line) => {
                progress.line(&line);
                on_line(&line);
                lines.push(line);
            }
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        progress.tick();
    }
    progress.finish();
    for reader in readers.into_iter().flatten() {
        if reader.join().is_err() {
            bail!("a reader of `{}` panicked", shown(command));
        }
    }
    let status = child
        .wait()
        .with_context(|| format!("wait for `{}`", shown(command)))?;
    Ok(Finished { status, lines })
}

/// Returns the standard output of a short command, or `None` if it cannot be run or fails.
pub fn captured_stdout(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Formats the command as a user would type it.
pub fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn read_lines(
    stream: impl Read + Send + 'static,
    lines: SyncSender<String>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in lossy_lines(stream) {
            // The receiver may be gone.
            if lines.send(line.trim_end().to_owned()).is_err() {
                return;
            }
        }
    })
}

/// Reads output line by line. Invalid UTF-8 is replaced: conformance suites print received bytes. A
/// read error ends the output.
pub fn lossy_lines(stream: impl Read) -> impl Iterator<Item = String> {
    let lines = BufReader::new(stream).split(b'\n').map_while(Result::ok);
    lines.map(|line| {
        let text = String::from_utf8_lossy(&line);
        text.strip_suffix('\r').unwrap_or(&text).to_owned()
    })
}

/// Returns whether a line only shows cargo's progress.
pub(crate) fn is_cargo_progress(line: &str) -> bool {
    let line = line.trim_start();
    CARGO_PROGRESS.iter().any(|word| line.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_are_collected() {
        let mut seen = 0;
        let finished = observe("test", &mut shell("echo out; echo err >&2; exit 3"), |_| {
            seen += 1;
        })
        .expect("sh runs");
        assert_eq!(finished.status.code(), Some(3));
        let mut lines = finished.lines;
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
        assert_eq!(seen, 2);
    }

    #[test]
    fn failed_command_is_named_in_error() {
        let error = run("test", &mut shell("exit 4")).expect_err("exit 4 is a failure");
        assert_eq!(error.to_string(), "`sh -c exit 4`: exit status: 4");
    }

    #[test]
    fn output_larger_than_pipe_buffer_is_collected() {
        let finished = observe("test", &mut shell("seq 1 5000"), |_| ()).expect("seq runs");
        assert_eq!(finished.lines.len(), 5000);
    }

    #[test]
    fn failed_query_returns_none() {
        assert_eq!(captured_stdout(&mut shell("echo 1; exit 1")), None);
        assert_eq!(captured_stdout(&mut Command::new("no-such-program")), None);
        assert_eq!(
            captured_stdout(&mut shell("echo yes")).as_deref(),
            Some("yes\n")
        );
    }

    #[test]
    fn cargo_progress_is_distinguished_from_errors() {
        assert!(is_cargo_progress("   Compiling serde v1.0.0"));
        assert!(!is_cargo_progress("error: unused variable"));
    }
}
