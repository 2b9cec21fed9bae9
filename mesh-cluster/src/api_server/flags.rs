//! The flags of the connection to the API server.

use std::path::PathBuf;

use clap::Args;

/// Without these flags a controller connects to the API server of its own cluster with its
/// ServiceAccount.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterFlags {
    /// Kubeconfig, for a controller that does not run in a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of the current one
    #[arg(long = "kube-context", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
    /// The API server of a simulated world.
    #[cfg(feature = "simulation")]
    #[arg(skip)]
    pub simulated: Option<crate::simulation::Dial>,
}
