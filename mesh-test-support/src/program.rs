//! Programs that run beside a test.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use crate::eventually::{TIMEOUT, eventually, eventually_async};

/// A running program and the lines that it prints. Dropping it kills it and waits for its end; if
/// the test fails, its output is shown.
pub struct Program {
    child: Child,
    /// Its command line.
    line: String,
    output: Arc<Output>,
}

/// The lines of standard output, which a thread of their own reads, so that the program never
/// blocks on a full pipe.
#[derive(Default)]
struct Output {
    state: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    all: Vec<String>,
    /// How many of them the test has taken.
    taken: usize,
    ended: bool,
}

impl Program {
    /// Starts a command, whose standard input is a pipe and whose standard output is collected.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn start(command: &mut Command) -> Self {
        let line = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        let output = Arc::<Output>::default();
        let pipe = child.stdout.take().expect("standard output is a pipe");
        let collected = output.clone();
        thread::spawn(move || collected.collect(pipe));
        Self {
            child,
            line,
            output,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line of output; `None` after the last.
    ///
    /// # Panics
    ///
    /// There is none within [`TIMEOUT`].
    pub fn next_line(&self) -> Option<String> {
        let mut lines = self.output.state.lock();
        let waits = |lines: &mut Lines| lines.taken == lines.all.len() && !lines.ended;
        let waited = (self.output.changed).wait_while_for(&mut lines, waits, TIMEOUT);
        assert!(!waited.timed_out(), "{} printed nothing", self.line);
        let next = lines.all.get(lines.taken).cloned()?;
        lines.taken += 1;
        Some(next)
    }

    /// Waits for the next line of output, which is JSON, or else becomes a JSON string.
    ///
    /// # Panics
    ///
    /// There is none.
    pub fn next_event(&self) -> Value {
        let line = self.next_line();
        event(line.unwrap_or_else(|| panic!("{} has ended", self.line)))
    }

    /// Closes standard input and returns the events until the program ends.
    pub fn remaining_events(mut self) -> Vec<Value> {
        drop(self.child.stdin.take());
        std::iter::from_fn(|| self.next_line()).map(event).collect()
    }

    /// Waits for a line of output that contains the text, and takes the lines up to it. An error is
    /// all output of a program that ended without such a line.
    pub fn wait_for(&self, text: &str) -> Result<String, String> {
        let found = std::iter::from_fn(|| self.next_line()).find(|line| line.contains(text));
        found.ok_or_else(|| self.log())
    }

    /// Waits until a line of all output contains the text, and returns it.
    pub async fn logged(&self, text: &str) -> String {
        eventually_async(&format!("{text:?} to be logged"), async || {
            let lines = self.output.state.lock();
            let found = lines.all.iter().find(|line| line.contains(text));
            found.cloned().ok_or_else(|| self.line.clone())
        })
        .await
    }

    /// Returns all output so far.
    pub fn log(&self) -> String {
        let lines = self.output.state.lock();
        lines.all.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Writes a line to standard input.
    pub fn write_line(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("standard input is a pipe");
        // One write: a reader must not get the line without its end.
        let line = format!("{line}\n");
        let written = input.write_all(line.as_bytes());
        written.unwrap_or_else(|error| panic!("{}: {error}", self.line));
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id().cast_signed());
        kill(pid, signal).expect("the program runs");
    }

    /// Asks it to stop, as the kubelet does.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // Fails only if it has ended already.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// Waits for its end.
    pub fn exit(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.line);
        eventually(&what, || self.exit_status())
    }

    /// The same on a runtime.
    pub async fn exited(&mut self) -> ExitStatus {
        let what = format!("the end of {}", self.line);
        eventually_async(&what, async || self.exit_status()).await
    }

    /// Waits until it has printed all, and returns that and its exit status.
    pub fn finish(mut self) -> (ExitStatus, String) {
        drop(self.child.stdin.take());
        while self.next_line().is_some() {}
        (self.exit(), self.log())
    }

    /// Returns its exit status if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            println!("{}:\n{}", self.line, self.log());
        }
    }
}

impl Output {
    fn collect(&self, pipe: impl Read) {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            self.state.lock().all.push(line);
            self.changed.notify_all();
        }
        self.state.lock().ended = true;
        self.changed.notify_all();
    }
}

fn event(line: String) -> Value {
    serde_json::from_str(&line).unwrap_or(Value::String(line))
}
