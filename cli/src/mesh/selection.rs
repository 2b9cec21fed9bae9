//! Selects the local node or cluster that a command operates on. An explicit flag or
//! `MESHCTL_LOCAL` decides. Without one, a running local node takes precedence over the current
//! context of the default kubeconfig, because a user who started a node is working with it. A
//! cluster that `KUBECONFIG` selects takes precedence over both.

use mesh_local::node_paths::NodePaths;

use crate::cluster;
use crate::global::Global;

/// The inputs of the selection.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectionInputs {
    pub(crate) local: Option<String>,
    pub(crate) has_cluster_flag: bool,
    pub(crate) kubeconfig_in_environment: bool,
    /// A kubeconfig exists at the default path, or this process runs in a pod.
    pub(crate) has_default_cluster: bool,
    pub(crate) has_running_node: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    LocalNode(Option<String>),
    Cluster,
    RunningNode,
    DefaultCluster,
    None,
}

impl SelectionInputs {
    pub(crate) fn from_global(global: &Global) -> Self {
        Self {
            local: global.local_name(),
            has_cluster_flag: global.has_cluster_flag(),
            kubeconfig_in_environment: cluster::kubeconfig_in_environment(),
            has_default_cluster: cluster::is_configured(),
            has_running_node: NodePaths::all().is_ok_and(|all| !all.is_empty()),
        }
    }
}

pub(crate) fn select(inputs: &SelectionInputs) -> Selection {
    if let Some(name) = &inputs.local {
        return Selection::LocalNode(Some(name.clone()));
    }
    if inputs.has_cluster_flag {
        return Selection::Cluster;
    }
    match (inputs.kubeconfig_in_environment, inputs.has_running_node) {
        (false, true) => Selection::RunningNode,
        (true, _) => Selection::DefaultCluster,
        (false, false) if inputs.has_default_cluster => Selection::DefaultCluster,
        (false, false) => Selection::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_precede_environment_and_running_node() {
        let none = SelectionInputs::default();
        let all = SelectionInputs {
            local: Some("demo".to_owned()),
            has_cluster_flag: true,
            kubeconfig_in_environment: true,
            has_default_cluster: true,
            has_running_node: true,
        };
        let node = Selection::LocalNode(Some("demo".to_owned()));
        assert_eq!(select(&none), Selection::None);
        assert_eq!(select(&all), node);
        let without_name = SelectionInputs { local: None, ..all };
        assert_eq!(select(&without_name), Selection::Cluster);
        let without_flags = SelectionInputs {
            has_cluster_flag: false,
            ..without_name
        };
        assert_eq!(select(&without_flags), Selection::DefaultCluster);
        let default_path = SelectionInputs {
            kubeconfig_in_environment: false,
            ..without_flags
        };
        assert_eq!(select(&default_path), Selection::RunningNode);
        let no_node = SelectionInputs {
            has_running_node: false,
            ..default_path
        };
        assert_eq!(select(&no_node), Selection::DefaultCluster);
    }
}
