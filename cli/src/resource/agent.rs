//! Reports of node agents.

use mesh_core::node::{NodeStatus, PodStatus};

/// The report of one node's agent.
pub(crate) struct AgentReport {
    pub(crate) node: String,
    pub(crate) status: anyhow::Result<NodeStatus>,
    pub(crate) pods: anyhow::Result<Vec<PodStatus>>,
}
