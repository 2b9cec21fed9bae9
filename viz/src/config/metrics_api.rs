//! The flags of `mesh-viz metrics-api`.

use std::net::SocketAddr;

use clap::Args;
use mesh_cluster::flags::{Log, Source, listen_addr};

use super::Prometheus;

#[derive(Debug, Args)]
pub struct MetricsApi {
    /// Address of the gRPC server
    #[arg(long, default_value = ":8085", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9995", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    #[command(flatten)]
    pub prometheus: Prometheus,
    /// Scrape the proxies instead of querying a Prometheus: at most 256, each 5 s, with the samples
    /// of the last 5 min
    #[arg(long, conflicts_with = "url")]
    pub scrape_proxies: bool,
    /// Namespace of the control plane whose pods count as meshed
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Namespaces whose pods are not listed
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "kube-system"
    )]
    pub ignore_namespaces: Vec<String>,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub log: Log,
}
