//! The flags of `mesh-viz namespace-metadata`.

use clap::Args;
use mesh_cluster::flags::{Cluster, Log};

#[derive(Debug, Args)]
pub struct NamespaceMetadata {
    /// Name of the extension, the value of the label linkerd.io/extension
    #[arg(long, value_name = "NAME")]
    pub extension: String,
    /// Namespace of the extension
    #[arg(long, value_name = "NAME")]
    pub namespace: String,
    /// URL of the Prometheus that the extension uses instead of its own; empty for none
    #[arg(long, value_name = "URL", default_value = "")]
    pub prometheus_url: String,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
