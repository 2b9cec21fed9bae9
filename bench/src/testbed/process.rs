//! Programs that run beside us: what they say, how they end, and waiting for them.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;
use xtask::command::{lossy_lines, shown};

use super::pod::{DIRECTORY, ENTER};

/// What must happen and does not happen in this time never will.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(3);
/// Between two looks at what cannot be waited for otherwise.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running program. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    what: String,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Process {
    /// Starts a command; what it writes to standard error goes to a file that is named for it.
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
        let output = child.stdout.take().context("standard output is a pipe")?;
        // Unbounded: nobody says more than a few lines, and nobody may be stopped by us not
        // reading.
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // To the end even when nobody listens, or the program would stop at its last words.
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

    /// It runs only when nothing else wants its CPU from now on.
    pub(crate) fn deprioritise(&self) -> anyhow::Result<()> {
        let id = self.id().to_string();
        run(Command::new("chrt").args(["--all-tasks", "--idle", "--pid", "0", &id]))
    }

    /// The next line it prints.
    pub(crate) fn next_line(&self) -> anyhow::Result<String> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("{} says nothing", self.command_and_log()),
            Err(RecvTimeoutError::Disconnected) => bail!("{} ended early", self.command_and_log()),
        }
    }

    /// The next line, which is JSON.
    pub(crate) fn next_event(&self) -> anyhow::Result<Value> {
        let line = self.next_line()?;
        serde_json::from_str(&line).with_context(|| format!("`{}` said {line:?}", self.what))
    }

    /// Everything it prints until it ends by itself, which it must do well.
    pub(crate) fn output(self) -> anyhow::Result<String> {
        let (what, log) = (self.what.clone(), self.log.clone());
        let (status, output) = self.finish()?;
        if !status.success() {
            bail!("`{what}`: {status}\n{output}{}", read(&log));
        }
        Ok(output)
    }

    /// Everything it prints until it ends by itself, and how it ended.
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
        let input = self.input.as_mut().context("standard input is a pipe")?;
        writeln!(input, "{line}")?;
        Ok(())
    }

    /// How it ended, if it has.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Ends it now.
    pub(crate) fn kill(&mut self) {
        // The only error is that it has ended already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }

    /// What it is and what it wrote to standard error, for an error message.
    pub(crate) fn command_and_log(&self) -> String {
        format!("`{}`\n{}", self.what, read(&self.log))
    }

    /// Where what it writes to standard error goes.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command that prints nothing when all is well.
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

/// Waits until `look` finds something.
pub(crate) fn wait_until<T>(
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if begun.elapsed() > TIMEOUT {
            bail!("{what}: not within {} s", TIMEOUT.as_secs());
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// The program of a pod's command, without what puts it into the pod.
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
