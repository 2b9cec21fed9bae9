//! Status that the agent's tasks publish for [`NodeStatus`]: the CNI chain, the API server, and
//! pods that wait to be enrolled. The tasks write it, the node thread reads it.

use std::sync::Arc;

use mesh_core::node::{CniStatus, NodeStatus, WaitingPod};
use parking_lot::Mutex;

#[derive(Clone, Debug, Default)]
pub struct SharedStatus {
    /// Locked only to copy.
    latest: Arc<Mutex<Latest>>,
}

#[derive(Debug, Default)]
struct Latest {
    cni: Option<CniStatus>,
    cni_warnings: Vec<String>,
    api_problem: Option<String>,
    waiting: Vec<WaitingPod>,
}

impl SharedStatus {
    pub fn set_cni(&self, status: CniStatus, warnings: Vec<String>) {
        let mut latest = self.latest.lock();
        latest.cni = Some(status);
        latest.cni_warnings = warnings;
    }

    /// Sets why the API server cannot be reached; `None` when it can.
    pub fn set_api_problem(&self, problem: Option<String>) {
        self.latest.lock().api_problem = problem;
    }

    pub fn set_waiting(&self, waiting: Vec<WaitingPod>) {
        self.latest.lock().waiting = waiting;
    }

    pub fn add_to(&self, status: &mut NodeStatus) {
        let latest = self.latest.lock();
        status.cni.clone_from(&latest.cni);
        status.waiting.clone_from(&latest.waiting);
        if let Some(cni) = latest.cni.as_ref().filter(|cni| !cni.chained) {
            let warning = format!("mesh-cni is not in the node's CNI chain: {}", cni.reason);
            status.warnings.push(warning);
        }
        status.warnings.extend(latest.cni_warnings.iter().cloned());
        status.warnings.extend(latest.api_problem.clone());
    }
}
