//! A command of the node agent that runs beside it: on a local node as a child process, on a
//! cluster in the agent's pod.

use std::process::Stdio;
use std::time::Duration;

use kube::api::AttachedProcess;
use mesh_local::settings::{Program, Settings};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader};
use tokio::process::{Child, Command};

use super::Mesh;
use crate::exit::Failure;
use crate::node::Node;

pub(crate) type Output = BufReader<Box<dyn AsyncRead + Send + Unpin>>;

/// A running command. It ends when this is dropped.
pub(crate) struct AgentProcess {
    pub(crate) input: Box<dyn AsyncWrite + Send + Unpin>,
    pub(crate) output: Output,
    errors: Box<dyn AsyncRead + Send + Unpin>,
    _process: Process,
}

/// Kept, because the command ends with it.
enum Process {
    Child(#[expect(dead_code, reason = "dropping it kills the process")] Child),
    Attached(AttachedProcess),
}

/// A line is one event as JSON.
const MAX_LINE: u64 = 16 << 10;

/// An error is a few lines.
const MAX_ERROR: u64 = 4 << 10;

/// Time to wait for the text of an error. The process writes it before it closes its output.
const ERROR_TIMEOUT: Duration = Duration::from_secs(1);

impl Mesh {
    /// Starts a command of the agent of a node.
    pub(crate) async fn run_agent(
        &self,
        node: &str,
        arguments: &[&str],
    ) -> anyhow::Result<AgentProcess> {
        match self {
            Self::Local(local) => run_child(local, arguments),
            Self::Cluster(cluster) => Ok(AgentProcess::attached(
                cluster.run_agent(node, arguments).await?,
            )?),
        }
    }
}

fn run_child(node: &Node, arguments: &[&str]) -> anyhow::Result<AgentProcess> {
    let program = Settings::read(&node.paths)?.program(Program::Agent);
    let spawned = Command::new(&program)
        .args(arguments)
        .arg("--socket")
        .arg(node.paths.agent_socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = spawned.map_err(|error| {
        Failure::Unreachable(format!("cannot start {}: {error}", program.display()))
    })?;
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(input), Some(output), Some(errors)) = (input, output, errors) else {
        anyhow::bail!("the pipes of {} are in use", program.display());
    };
    Ok(AgentProcess {
        input: Box::new(input),
        output: BufReader::new(Box::new(output)),
        errors: Box::new(errors),
        _process: Process::Child(child),
    })
}

impl AgentProcess {
    fn attached(mut process: AttachedProcess) -> Result<Self, Failure> {
        let (input, output, errors) = (process.stdin(), process.stdout(), process.stderr());
        let (Some(input), Some(output), Some(errors)) = (input, output, errors) else {
            let problem = "the API server attached no streams to the command of the agent";
            return Err(Failure::Unreachable(problem.to_owned()));
        };
        Ok(Self {
            input: Box::new(input),
            output: BufReader::new(Box::new(output)),
            errors: Box::new(errors),
            _process: Process::Attached(process),
        })
    }

    /// Returns the first line of output, or the error that the command printed instead.
    pub(crate) async fn first_line(&mut self) -> anyhow::Result<String> {
        if let Some(line) = next_line(&mut self.output).await? {
            return Ok(line);
        }
        let mut text = String::new();
        let mut errors = (&mut self.errors).take(MAX_ERROR);
        // The text that arrived in time is the reason.
        let _ended = tokio::time::timeout(ERROR_TIMEOUT, errors.read_to_string(&mut text)).await;
        anyhow::bail!("{}", message(&text))
    }
}

/// Returns the last line without the time and level of the log.
fn message(log: &str) -> &str {
    let last = log.lines().rfind(|line| !line.trim().is_empty());
    let last = last.unwrap_or("the command of the node agent ended");
    last.split_once("ERROR ")
        .map_or(last, |(_, rest)| rest)
        .trim()
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Attached(process) = self {
            process.abort();
        }
    }
}

/// Returns the next line of output; `None` at its end.
pub(crate) async fn next_line(output: &mut Output) -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let read = output.take(MAX_LINE).read_line(&mut line).await?;
    match (read, line.ends_with('\n')) {
        (0, _) => Ok(None),
        (_, true) => Ok(Some(line.trim_end().to_owned())),
        (_, false) => anyhow::bail!("a line of the node agent is incomplete or too long"),
    }
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn message_is_the_last_line_of_the_log() {
        let log = "2026-01-01T00:00:00Z  INFO a\n2026-01-01T00:00:00Z ERROR pod a/b is absent\n\n";
        assert_eq!(message(log), "pod a/b is absent");
        assert_eq!(message("cannot start\n"), "cannot start");
        assert_eq!(message(""), "the command of the node agent ended");
    }
}
