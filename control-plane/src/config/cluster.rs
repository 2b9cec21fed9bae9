//! The flags that say where the API server is.

use std::path::PathBuf;

use clap::Args;

/// Without any of these a controller asks the API server of the cluster it runs in, as its
/// ServiceAccount.
#[derive(Clone, Debug, Default, Args)]
pub struct Cluster {
    /// The API server and who to be there, for a controller that does not run in a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig, instead of its current one
    #[arg(long = "kube-context", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,
}
