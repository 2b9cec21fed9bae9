//! Supervises a container: starts, probes, restarts and stops it.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use std::{fs, io};

use jiff::Timestamp;
use mesh_runtime::log::chain;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;

use super::probe::{ExecTarget, Probes};
use super::shim::{self, CreateSpec, ShimTask};
use super::state::{BACK_OFF, CANNOT_START, COMPLETED, ContainerState, ERROR, Phase, Termination};
use crate::cgroup;
use crate::file::{self, FileError};

/// A container to run.
#[derive(Clone, Debug)]
pub struct Container {
    pub name: String,
    pub create_spec: CreateSpec,
    pub probes: Probes,
    pub restart_policy: RestartPolicy,
    /// Standard output and standard error are appended to this file.
    pub log: PathBuf,
    /// The directory of the pod, where the tasks of the shim are written.
    pub pod_directory: PathBuf,
}

/// When an exited container is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// The container must exit by this deadline; `None` while it should run.
pub type StopSignal = watch::Receiver<Option<Instant>>;

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("create the container's cgroup")]
    Cgroup(#[source] FileError),
    #[error("write the task of the shim")]
    Task(#[source] io::Error),
    #[error(transparent)]
    Log(#[from] FileError),
    #[error("start meshctl as the container's shim")]
    Spawn(#[source] io::Error),
}

/// Delay before the first restart, which doubles with each further one. Kubernetes starts with 10
/// s, which is too long for interactive use.
const MIN_BACK_OFF: Duration = Duration::from_secs(1);
const MAX_BACK_OFF: Duration = Duration::from_secs(300);
/// The delay is reset after this run time, as in Kubernetes.
const BACK_OFF_RESET: Duration = Duration::from_secs(600);

/// Runs the container until it is stopped, or has exited and is not restarted.
pub async fn run(
    container: &Container,
    state: &watch::Sender<ContainerState>,
    mut stop: StopSignal,
) {
    let mut back_off = MIN_BACK_OFF;
    loop {
        if stop.borrow().is_some() {
            return;
        }
        let started = Instant::now();
        let termination = run_once(container, state, &mut stop).await;
        let stopping = stop.borrow().is_some();
        if stopping || !should_restart(container.restart_policy, &termination) {
            state.send_modify(|state| {
                state.ready = false;
                state.phase = Phase::Terminated(termination);
            });
            return;
        }
        tracing::warn!(
            container = container.name,
            code = termination.code,
            message = termination.message,
            "Restarting exited container"
        );
        if started.elapsed() >= BACK_OFF_RESET {
            back_off = MIN_BACK_OFF;
        }
        state.send_modify(|state| {
            state.ready = false;
            state.started = false;
            state.restarts += 1;
            let text = format!("restarting in {back_off:?}: {}", termination.message);
            state.phase = Phase::Waiting {
                reason: if termination.reason == CANNOT_START {
                    CANNOT_START
                } else {
                    BACK_OFF
                },
                message: text,
            };
            state.last_termination = Some(termination);
        });
        tokio::select! {
            () = tokio::time::sleep(back_off) => {}
            // The sender exists as long as the pod.
            _ = stop.wait_for(Option::is_some) => {}
        }
        back_off = (back_off * 2).min(MAX_BACK_OFF);
    }
}

fn should_restart(policy: RestartPolicy, termination: &Termination) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => termination.code != 0,
        RestartPolicy::Never => false,
    }
}

/// Runs the container once.
async fn run_once(
    container: &Container,
    state: &watch::Sender<ContainerState>,
    stop: &mut StopSignal,
) -> Termination {
    let since = Timestamp::now();
    let started = Instant::now();
    let mut child = match spawn(container) {
        Ok(child) => child,
        Err(error) => {
            return Termination {
                code: 128,
                reason: CANNOT_START,
                message: chain(&error),
                since,
                at: Timestamp::now(),
            };
        }
    };
    let pid = child.id().unwrap_or_default();
    state.send_modify(|state| {
        state.phase = Phase::Running { pid, since };
    });
    let target = ExecTarget {
        program: container.create_spec.program.clone(),
        cgroup: container.create_spec.cgroup.clone(),
        pid,
        since: started,
        task_file: container
            .pod_directory
            .join(format!("{}.probe.json", container.name)),
    };
    let (status, reason) = tokio::select! {
        status = child.wait() => (status, None),
        reason = container.probes.watch(&target, state) => {
            state.send_modify(|state| state.ready = false);
            let deadline = Instant::now() + PROBE_FAILURE_GRACE;
            (terminate(&mut child, deadline, &container.create_spec.cgroup).await, Some(reason))
        }
        deadline = stop_deadline(stop) => {
            (terminate(&mut child, deadline, &container.create_spec.cgroup).await, None)
        }
    };
    // Processes that the program left in its cgroup are killed.
    if let Err(error) = cgroup::kill(&container.create_spec.cgroup).await {
        tracing::warn!(container = container.name, %error, "Cannot kill the remaining processes of the container");
    }
    let failure = fs::read_to_string(&container.create_spec.failure).unwrap_or_default();
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
    Termination {
        code,
        reason,
        message,
        since,
        at: Timestamp::now(),
    }
}

/// Grace period of a container that fails its probes. It is shorter than the pod's, because such a
/// container has no requests to drain.
const PROBE_FAILURE_GRACE: Duration = Duration::from_secs(5);

async fn stop_deadline(stop: &mut StopSignal) -> Instant {
    match stop.wait_for(Option::is_some).await {
        Ok(deadline) => deadline.unwrap_or_else(Instant::now),
        // The pod has been dropped: stop immediately.
        Err(_) => Instant::now(),
    }
}

/// Sends SIGTERM to the program, and kills its cgroup at the deadline.
async fn terminate(child: &mut Child, deadline: Instant, cgroup: &Path) -> io::Result<ExitStatus> {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // The program may have exited concurrently.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if let Ok(status) = tokio::time::timeout_at(deadline, child.wait()).await {
        return status;
    }
    if let Err(error) = cgroup::kill(cgroup).await {
        tracing::warn!(%error, "Cannot kill the container");
        child.start_kill()?;
    }
    child.wait().await
}

fn spawn(container: &Container) -> Result<Child, StartError> {
    cgroup::create(&container.create_spec.cgroup).map_err(StartError::Cgroup)?;
    let path = container
        .pod_directory
        .join(format!("{}.json", container.name));
    let text = serde_json::to_vec(&ShimTask::Create(container.create_spec.clone()))
        .map_err(|error| StartError::Task(error.into()))?;
    file::write(&path, &text, 0o600).map_err(StartError::Task)?;
    file::remove(&container.create_spec.failure).map_err(StartError::Task)?;
    let log_error = file::failed("open the log", &container.log);
    let log = file::append(&container.log).map_err(&log_error)?;
    let second = log.try_clone().map_err(log_error)?;
    shim::command(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(second))
        .spawn()
        .map_err(StartError::Spawn)
}

fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}
