//! Keeps one container running: starts it, probes it, starts it again when it ends, and ends it
//! when told.

use std::{
    fs, io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use jiff::Timestamp;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    sync::watch,
    time::Instant,
};

use super::{
    probe::{Inside, Probes},
    state::{BACK_OFF, CANNOT_START, COMPLETED, ContainerState, ERROR, Ended, Phase},
    stub::{Start, Task},
};
use crate::{cgroup, file};

/// Everything one container needs to run.
#[derive(Clone, Debug)]
pub struct Container {
    pub name: String,
    pub start: Start,
    pub probes: Probes,
    pub restart: Restart,
    /// Both outputs are appended to it.
    pub log: PathBuf,
    /// The pod's folder, where the stub's tasks are written.
    pub folder: PathBuf,
}

/// When a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    Always,
    OnFailure,
    Never,
}

/// Until when the container may take to end; absent while it is to run.
pub type Stop = watch::Receiver<Option<Instant>>;

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("make its cgroup")]
    Cgroup(#[source] cgroup::CgroupError),
    #[error("write the stub's task")]
    Task(#[source] io::Error),
    #[error("open the log {path}")]
    Log {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("start meshctl again as the container's stub")]
    Spawn(#[source] io::Error),
}

/// The first wait before a start after a failure; each further one is twice as long. Kubernetes
/// begins at 10 s, long for someone who watches.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);
/// A container that ran for so long is taken for well again, as in Kubernetes.
const WELL_AFTER: Duration = Duration::from_secs(600);

/// Runs the container until it is over: told to stop, or ended and not to be started again.
pub async fn run(container: &Container, state: &watch::Sender<ContainerState>, mut stop: Stop) {
    let mut back_off = FIRST_BACK_OFF;
    loop {
        if stop.borrow().is_some() {
            return;
        }
        let begun = Instant::now();
        let ended = once(container, state, &mut stop).await;
        let stopping = stop.borrow().is_some();
        if stopping || !again(container.restart, &ended) {
            state.send_modify(|state| {
                state.ready = false;
                state.phase = Phase::Ended(ended);
            });
            return;
        }
        tracing::warn!(
            container = container.name,
            code = ended.code,
            message = ended.message,
            "container ended and is started again"
        );
        if begun.elapsed() >= WELL_AFTER {
            back_off = FIRST_BACK_OFF;
        }
        state.send_modify(|state| {
            state.ready = false;
            state.started = false;
            state.restarts += 1;
            let text = format!("started again in {back_off:?}: {}", ended.message);
            state.phase = Phase::Waiting {
                reason: if ended.reason == CANNOT_START {
                    CANNOT_START
                } else {
                    BACK_OFF
                },
                message: text,
            };
            state.last = Some(ended);
        });
        tokio::select! {
            () = tokio::time::sleep(back_off) => {}
            // The sender lives as long as the pod.
            _ = stop.wait_for(Option::is_some) => {}
        }
        back_off = (back_off * 2).min(LONGEST_BACK_OFF);
    }
}

/// This program again, as the stub of a task.
pub(super) fn stub_command(task: &Path) -> io::Result<Command> {
    // Not the path: the program may have been rebuilt, and this node goes on with what it was
    // started with.
    let mut command = Command::new("/proc/self/exe");
    command.args(["local", "exec-stub"]).arg(task).env_clear();
    Ok(command)
}

fn again(restart: Restart, ended: &Ended) -> bool {
    match restart {
        Restart::Always => true,
        Restart::OnFailure => ended.code != 0,
        Restart::Never => false,
    }
}

/// One life of the container.
async fn once(
    container: &Container,
    state: &watch::Sender<ContainerState>,
    stop: &mut Stop,
) -> Ended {
    let since = Timestamp::now();
    let begun = Instant::now();
    let mut child = match spawn(container) {
        Ok(child) => child,
        Err(error) => {
            return Ended {
                code: 128,
                reason: CANNOT_START,
                message: super::stub::describe(&error),
                since,
                at: Timestamp::now(),
            };
        }
    };
    let pid = child.id().unwrap_or_default();
    state.send_modify(|state| {
        state.phase = Phase::Running { pid, since };
    });
    let inside = Inside {
        program: container.start.program.clone(),
        cgroup: container.start.cgroup.clone(),
        pid,
        since: begun,
        task_file: container
            .folder
            .join(format!("{}.probe.json", container.name)),
    };
    let (status, reason) = tokio::select! {
        status = child.wait() => (status, None),
        reason = container.probes.watch(&inside, state) => {
            state.send_modify(|state| state.ready = false);
            let deadline = Instant::now() + KILLED_BY_PROBE;
            (end(&mut child, deadline, &container.start.cgroup).await, Some(reason))
        }
        deadline = told(stop) => {
            (end(&mut child, deadline, &container.start.cgroup).await, None)
        }
    };
    // What the program left behind in its cgroup ends with it.
    if let Err(error) = cgroup::kill(&container.start.cgroup).await {
        tracing::warn!(container = container.name, %error, "processes of the container are left");
    }
    let failure = fs::read_to_string(&container.start.failure).unwrap_or_default();
    let code = match &status {
        Ok(status) => exit_code(*status),
        Err(_) => 128,
    };
    let message = match (&failure, reason, &status) {
        (text, _, _) if !text.is_empty() => text.clone(),
        (_, Some(reason), _) => reason,
        (_, None, Ok(status)) => status.to_string(),
        (_, None, Err(error)) => error.to_string(),
    };
    let reason = match code {
        _ if !failure.is_empty() => CANNOT_START,
        0 => COMPLETED,
        _ => ERROR,
    };
    Ended {
        code,
        reason,
        message,
        since,
        at: Timestamp::now(),
    }
}

/// A container that fails its probes is not given the pod's whole grace period: nobody waits for it
/// to drain.
const KILLED_BY_PROBE: Duration = Duration::from_secs(5);

async fn told(stop: &mut Stop) -> Instant {
    match stop.wait_for(Option::is_some).await {
        Ok(deadline) => deadline.unwrap_or_else(Instant::now),
        // The pod is gone without a word: end at once.
        Err(_) => Instant::now(),
    }
}

/// Asks the program to end, and kills its cgroup when it has not by the deadline.
async fn end(child: &mut Child, deadline: Instant, cgroup: &Path) -> io::Result<ExitStatus> {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended by itself in this moment.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if let Ok(status) = tokio::time::timeout_at(deadline, child.wait()).await {
        return status;
    }
    if let Err(error) = cgroup::kill(cgroup).await {
        tracing::warn!(%error, "kill the container");
        child.start_kill()?;
    }
    child.wait().await
}

fn spawn(container: &Container) -> Result<Child, StartError> {
    cgroup::make(&container.start.cgroup).map_err(StartError::Cgroup)?;
    let path = container.folder.join(format!("{}.json", container.name));
    let text = serde_json::to_vec(&Task::Start(container.start.clone()))
        .map_err(|error| StartError::Task(error.into()))?;
    file::write(&path, &text, 0o600).map_err(StartError::Task)?;
    file::remove(&container.start.failure).map_err(StartError::Task)?;
    let log = open_log(&container.log).map_err(|source| StartError::Log {
        path: container.log.clone(),
        source,
    })?;
    let second = log.try_clone().map_err(|source| StartError::Log {
        path: container.log.clone(),
        source,
    })?;
    stub_command(&path)
        .map_err(StartError::Spawn)?
        .stdin(Stdio::null())
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(second))
        .spawn()
        .map_err(StartError::Spawn)
}

fn open_log(path: &Path) -> io::Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::options().append(true).create(true).open(path)
}

fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
