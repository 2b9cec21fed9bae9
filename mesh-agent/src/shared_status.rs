//! Status that the agent's tasks publish for [`NodeStatus`]: the CNI chain, the API server, and
//! pods that wait to be enrolled. The tasks write it, the node thread reads it.

use std::sync::Arc;

use mesh_core::node::{CniStatus, NodeStatus, WaitingPod};
use parking_lot::Mutex;

#[derive(Clone, Debug, Default)]
pub struct SharedStatus {
    /// Locked only to copy.
    current: Arc<Mutex<CurrentStatus>>,
}

#[derive(Debug, Default)]
struct CurrentStatus {
    cni: Option<CniStatus>,
    cni_warnings: Vec<String>,
    api_problem: Option<String>,
    waiting: Vec<WaitingPod>,
}

impl SharedStatus {
    pub fn set_cni(&self, status: CniStatus, warnings: Vec<String>) {
        let mut current = self.current.lock();
        current.cni = Some(status);
        current.cni_warnings = warnings;
    }

    /// Sets why the API server cannot be reached; `None` when it can.
    pub fn set_api_problem(&self, problem: Option<String>) {
        self.current.lock().api_problem = problem;
    }

    pub fn set_waiting(&self, waiting: Vec<WaitingPod>) {
        self.current.lock().waiting = waiting;
    }

    pub fn add_to(&self, status: &mut NodeStatus) {
        let current = self.current.lock();
        status.cni.clone_from(&current.cni);
        status.waiting.clone_from(&current.waiting);
        if let Some(cni) = current.cni.as_ref().filter(|cni| !cni.chained) {
            let warning = format!("mesh-cni is not in the node's CNI chain: {}", cni.reason);
            status.warnings.push(warning);
        }
        status.warnings.extend(current.cni_warnings.iter().cloned());
        status.warnings.extend(current.api_problem.clone());
    }
}
