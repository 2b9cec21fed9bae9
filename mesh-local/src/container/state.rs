//! The state of a container, which its supervisor reports to the pod.

use jiff::Timestamp;

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerState {
    pub phase: Phase,
    pub restarts: u32,
    /// The startup probe has succeeded, or there is none.
    pub started: bool,
    /// The readiness probe succeeds, or there is none.
    pub ready: bool,
    /// The termination before the last restart.
    pub last_termination: Option<Termination>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    Waiting {
        reason: &'static str,
        message: String,
    },
    Running {
        pid: u32,
        since: Timestamp,
    },
    Terminated(Termination),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Termination {
    /// The exit code as in a shell: 128 plus the signal number for a killed program.
    pub code: i32,
    pub reason: &'static str,
    pub message: String,
    pub since: Timestamp,
    pub at: Timestamp,
}

/// The container waits for init containers.
pub const POD_INITIALIZING: &str = "PodInitializing";
/// The container has exited and is about to be restarted.
pub const BACK_OFF: &str = "CrashLoopBackOff";
pub const COMPLETED: &str = "Completed";
pub const ERROR: &str = "Error";
/// The program could not be started.
pub const CANNOT_START: &str = "CannotStart";

impl Default for ContainerState {
    fn default() -> Self {
        Self {
            phase: Phase::Waiting {
                reason: POD_INITIALIZING,
                message: String::new(),
            },
            restarts: 0,
            started: false,
            ready: false,
            last_termination: None,
        }
    }
}

impl ContainerState {
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    pub fn pid(&self) -> Option<u32> {
        match self.phase {
            Phase::Running { pid, .. } => Some(pid),
            _ => None,
        }
    }

    /// Returns how the container terminated, if it has and is not restarted.
    pub fn termination(&self) -> Option<&Termination> {
        match &self.phase {
            Phase::Terminated(termination) => Some(termination),
            _ => None,
        }
    }
}
