//! Supervises programs of the node: restarts them when they exit, and stops them with the node.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::file;

/// A supervised program. Dropping this stops the program.
pub(super) struct Helper {
    task: JoinHandle<()>,
    commands: mpsc::Sender<HelperCommand>,
    exit_reason: watch::Receiver<Option<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelperCommand {
    Reload,
    Restart,
}

#[derive(Clone, Debug)]
pub(super) struct HelperSpec {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) log: PathBuf,
}

const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Capacity of the channel. One loop sends all commands, so that few are queued.
const COMMAND_QUEUE: usize = 2;

impl Helper {
    pub(super) fn start(spec: HelperSpec) -> Self {
        let (commands, receiver) = mpsc::channel(COMMAND_QUEUE);
        let (exit_sender, exit_reason) = watch::channel(None);
        Self {
            task: tokio::spawn(supervise(spec, receiver, exit_sender)),
            commands,
            exit_reason,
        }
    }

    pub(super) async fn send(&self, command: HelperCommand) {
        // The task runs as long as this value exists.
        let _ = self.commands.send(command).await;
    }

    /// Waits until the program has exited once, and returns the reason.
    pub(super) async fn wait_for_exit(&self) -> String {
        let mut exit_reason = self.exit_reason.clone();
        match exit_reason.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "its supervisor exit_reason".to_owned(),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Aborting the task drops the child, which kills the program.
        self.task.abort();
    }
}

async fn supervise(
    spec: HelperSpec,
    mut commands: mpsc::Receiver<HelperCommand>,
    exit_reason: watch::Sender<Option<String>>,
) {
    let name = spec.program.display().to_string();
    loop {
        let reason = match spawn(&spec) {
            Err(error) => error.to_string(),
            Ok(mut child) => match wait_or_restart(&mut child, &mut commands).await {
                Some(reason) => reason,
                None => continue,
            },
        };
        tracing::error!(
            "Restarting {name}, which exited: {reason}; its log is {}",
            spec.log.display()
        );
        exit_reason.send_replace(Some(reason));
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

/// Waits until the program exits and returns the reason, or `None` after a restart command.
async fn wait_or_restart(
    child: &mut Child,
    commands: &mut mpsc::Receiver<HelperCommand>,
) -> Option<String> {
    loop {
        tokio::select! {
            status = child.wait() => return Some(match status {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            }),
            Some(command) = commands.recv() => match command {
                HelperCommand::Reload => send_sighup(child),
                HelperCommand::Restart => {
                    if let Err(error) = child.kill().await {
                        return Some(error.to_string());
                    }
                    return None;
                }
            }
        }
    }
}

fn send_sighup(child: &Child) {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // The program may have exited; then it reads its configuration when it restarts.
        let _ = kill(Pid::from_raw(pid), Signal::SIGHUP);
    }
}

fn spawn(spec: &HelperSpec) -> io::Result<Child> {
    let log = file::append(&spec.log)?;
    let second = log.try_clone()?;
    Command::new(&spec.program)
        .args(&spec.args)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .kill_on_drop(true)
        .spawn()
}
