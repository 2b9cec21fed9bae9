//! Workloads outside of the cluster.

use std::sync::Arc;

use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;

use super::{Labels, Name};

/// A workload outside of the cluster, with the fields that its policy depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalWorkload {
    pub name: Name,
    pub labels: Labels,
    /// The names of TCP ports.
    pub named_ports: Vec<(Arc<str>, u16)>,
    /// The opaque ports of its annotation; `None` without annotation.
    pub opaque_ports: Option<PortSet>,
    pub require_identity_ports: PortSet,
    pub default_policy: Option<DefaultPolicy>,
}
