//! The flags of `mesh-controller heartbeat`.

use clap::Args;
use mesh_cluster::flags::{Cluster, Log};
use mesh_k8s::heartbeat::Receiver;

#[derive(Debug, Args)]
pub struct Heartbeat {
    /// URL that receives the report, as the query of a GET request; http or https, without
    /// credentials and query
    #[arg(long, value_name = "URL")]
    pub url: Receiver,
    /// Namespace of the control plane
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// URL of Prometheus, such as http://prometheus.linkerd-viz.svc.cluster.local:9090; empty for a
    /// report without its figures
    #[arg(long, value_name = "URL", default_value = "")]
    pub prometheus_url: String,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
