//! Child processes that print JSON lines, killed on drop.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

/// Timeout of an event, which normally takes a fraction of it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running child and the events it prints.
pub(crate) struct Process {
    child: Child,
    what: String,
    events: Receiver<Value>,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let output = child.stdout.take().expect("stdout is piped");
        let (tx, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if tx.send(event).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            what,
            events,
        }
    }

    /// A child whose output is a log and not events.
    pub(crate) fn spawn_logged(command: &mut Command, log: &File) -> Self {
        let what = format!("{command:?}");
        let copy = || log.try_clone().expect("a copy of the log");
        let child = command
            .stdin(Stdio::piped())
            .stdout(copy())
            .stderr(copy())
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let (_, events) = channel();
        Self {
            child,
            what,
            events,
        }
    }

    /// Waits for the next event.
    pub(crate) fn next_event(&self) -> Value {
        self.events
            .recv_timeout(TIMEOUT)
            .unwrap_or_else(|error| panic!("{}: no event: {error}", self.what))
    }

    /// Closes standard input and returns the events until the process exits.
    pub(crate) fn remaining_events(mut self) -> Vec<Value> {
        drop(self.child.stdin.take());
        let mut events = Vec::new();
        while let Ok(event) = self.events.recv_timeout(TIMEOUT) {
            events.push(event);
        }
        self.child.wait().expect("the child can be waited for");
        events
    }

    /// Continues a process that waits for a line.
    pub(crate) fn proceed(&mut self) {
        let input = self.child.stdin.as_mut().expect("stdin is piped");
        input
            .write_all(b"\n")
            .and_then(|()| input.flush())
            .expect("the child reads");
    }

    /// Kills the process with SIGKILL and waits for its exit.
    pub(crate) fn kill(&mut self) {
        // Fails only if the process has already exited.
        let _killed = self.child.kill();
        self.child.wait().expect("the child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command and returns its output if it succeeds.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!(
            "{program} {args:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}
