//! What node agents say.

use mesh_core::node::{NodeStatus, PodStatus};

/// What the agent of one node says.
pub(crate) struct AgentAnswer {
    pub(crate) node: String,
    pub(crate) status: anyhow::Result<NodeStatus>,
    pub(crate) pods: anyhow::Result<Vec<PodStatus>>,
}
