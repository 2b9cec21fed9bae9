//! Child processes: their output, their exit status, and waiting for them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use anyhow::{Context, bail};
use mesh_test_support::eventually::{TIMEOUT, try_eventually};
use serde_json::Value;
use xtask::command::{lossy_lines, shown};

use super::DIRECTORY;

/// The last command of a pod's shell, which replaces it with the program.
pub(super) const ENTER: &str = "exec \"$0\" \"$@\"";

/// A running program. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    what: String,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Process {
    /// Starts a command; its standard error goes to a log file named after it.
    pub(crate) fn start(name: &str, command: &mut Command) -> anyhow::Result<Self> {
        let what = without_wrapper(&shown(command));
        let log = Path::new(DIRECTORY).join(format!("{name}.log"));
        let errors = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start `{what}`"))?;
        let output = child
            .stdout
            .take()
            .context("standard output is not a pipe")?;
        // Unbounded: programs print few lines, and a full pipe must not block them.
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // Reads on even without a receiver, so that the program never blocks on a full pipe.
            lossy_lines(output).for_each(|line| drop(sender.send(line)));
        });
        Ok(Self {
            input: child.stdin.take(),
            child,
            what,
            lines,
            log,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives the process idle priority.
    pub(crate) fn deprioritise(&self) -> anyhow::Result<()> {
        let id = self.id().to_string();
        run(Command::new("chrt").args(["--all-tasks", "--idle", "--pid", "0", &id]))
    }

    /// Waits for the next line of its output.
    pub(crate) fn next_line(&self) -> anyhow::Result<String> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} printed nothing in time", self.command_and_log())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("{} exited early", self.command_and_log()),
        }
    }

    /// Waits for the next line of its output and parses it as JSON.
    pub(crate) fn next_event(&self) -> anyhow::Result<Value> {
        let line = self.next_line()?;
        serde_json::from_str(&line)
            .with_context(|| format!("parse the output of `{}`: {line:?}", self.what))
    }

    /// Waits for it to exit successfully and returns its output.
    pub(crate) fn output(self) -> anyhow::Result<String> {
        let (what, log) = (self.what.clone(), self.log.clone());
        let (status, output) = self.finish()?;
        if !status.success() {
            bail!("`{what}`: {status}\n{output}{}", read(&log));
        }
        Ok(output)
    }

    /// Waits for it to exit and returns its exit status and output.
    pub(crate) fn finish(mut self) -> anyhow::Result<(ExitStatus, String)> {
        drop(self.input.take());
        let mut output = String::new();
        while let Ok(line) = self.lines.recv() {
            output.push_str(&line);
            output.push('\n');
        }
        Ok((self.child.wait()?, output))
    }

    /// Writes a line to its standard input.
    pub(crate) fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self
            .input
            .as_mut()
            .context("standard input is not a pipe")?;
        writeln!(input, "{line}")?;
        Ok(())
    }

    /// Returns its exit status if it has exited.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Returns the lines of its output that nothing has read yet, for an error message about a
    /// process that has exited.
    pub(crate) fn printed(&self) -> String {
        let lines: Vec<String> = self.lines.iter().collect();
        lines.join("\n")
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        // Fails only if the process has already exited.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// Returns its command and its standard error, for an error message.
    pub(crate) fn command_and_log(&self) -> String {
        format!("`{}`\n{}", self.what, read(&self.log))
    }

    /// Returns the file of its standard error.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command whose output matters only if it fails.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run `{}`", shown(command)))?;
    if !output.status.success() {
        bail!(
            "`{}`: {}\n{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Polls `look` until it returns a value.
pub(crate) fn wait_until<T>(
    what: &str,
    look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    try_eventually(what, look)
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// Strips the wrapper that starts a program in a pod.
fn without_wrapper(command: &str) -> String {
    match command.rsplit_once(ENTER) {
        Some((_, program)) => program.trim().to_owned(),
        None => command.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_shown_without_pod_wrapper() {
        let command = format!("sh -c x nsenter taskset -c 0 sh -c ulimit && {ENTER} wrk -t1");
        assert_eq!(without_wrapper(&command), "wrk -t1");
        assert_eq!(without_wrapper("ip link"), "ip link");
    }
}
