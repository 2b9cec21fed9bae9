//! What a container is doing, as its runner tells the pod.

use jiff::Timestamp;

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerState {
    pub phase: Phase,
    pub restarts: u32,
    /// Passed its startup probe, or has none.
    pub started: bool,
    /// Passes its readiness probe, or has none.
    pub ready: bool,
    /// How it ended before it was started again.
    pub last: Option<Ended>,
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
    Ended(Ended),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// As a shell would say it: 128 and the signal's number for a killed program.
    pub code: i32,
    pub reason: &'static str,
    pub message: String,
    pub since: Timestamp,
    pub at: Timestamp,
}

/// Waiting for its turn, or for the containers before it.
pub const POD_INITIALIZING: &str = "PodInitializing";
/// Ended and about to be started again.
pub const BACK_OFF: &str = "CrashLoopBackOff";
pub const COMPLETED: &str = "Completed";
pub const ERROR: &str = "Error";
/// The program could not be started at all.
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
            last: None,
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

    /// Ended for good, and how.
    pub fn ended(&self) -> Option<&Ended> {
        match &self.phase {
            Phase::Ended(ended) => Some(ended),
            _ => None,
        }
    }
}
