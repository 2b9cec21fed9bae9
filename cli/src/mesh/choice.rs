//! Local node or cluster: which one a command means.
//!
//! An explicit flag or `MESHCTL_LOCAL` decides. Without one, a node that runs on this machine goes
//! before the kubeconfig's current context, because whoever started one is working with it; a
//! `KUBECONFIG` that is set says the opposite.

use mesh_local::instance::Instance;

use crate::{cluster, global::Global};

/// What there is to choose by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) local: Option<String>,
    pub(crate) names_cluster: bool,
    pub(crate) kubeconfig_in_environment: bool,
    /// A kubeconfig at its usual place, or a service account's token.
    pub(crate) cluster_is_known: bool,
    pub(crate) node_runs: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Node(Option<String>),
    Cluster,
    NodeThatRuns,
    ClusterOfKubeconfig,
    Nothing,
}

impl Given {
    pub(crate) fn of(global: &Global) -> Self {
        Self {
            local: global.local_name(),
            names_cluster: global.names_cluster(),
            kubeconfig_in_environment: cluster::kubeconfig_in_environment(),
            cluster_is_known: cluster::is_known(),
            node_runs: Instance::all().is_ok_and(|all| !all.is_empty()),
        }
    }
}

pub(crate) fn choose(given: &Given) -> Choice {
    if let Some(name) = &given.local {
        return Choice::Node(Some(name.clone()));
    }
    if given.names_cluster {
        return Choice::Cluster;
    }
    match (given.kubeconfig_in_environment, given.node_runs) {
        (false, true) => Choice::NodeThatRuns,
        (true, _) => Choice::ClusterOfKubeconfig,
        (false, false) if given.cluster_is_known => Choice::ClusterOfKubeconfig,
        (false, false) => Choice::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_then_environment_then_what_runs() {
        let none = Given::default();
        let all = Given {
            local: Some("demo".to_owned()),
            names_cluster: true,
            kubeconfig_in_environment: true,
            cluster_is_known: true,
            node_runs: true,
        };
        let node = Choice::Node(Some("demo".to_owned()));
        assert_eq!(choose(&none), Choice::Nothing);
        assert_eq!(choose(&all), node);
        let without_name = Given { local: None, ..all };
        assert_eq!(choose(&without_name), Choice::Cluster);
        let without_flags = Given {
            names_cluster: false,
            ..without_name
        };
        assert_eq!(choose(&without_flags), Choice::ClusterOfKubeconfig);
        let usual_place = Given {
            kubeconfig_in_environment: false,
            ..without_flags
        };
        assert_eq!(choose(&usual_place), Choice::NodeThatRuns);
        let no_node = Given {
            node_runs: false,
            ..usual_place
        };
        assert_eq!(choose(&no_node), Choice::ClusterOfKubeconfig);
    }
}
