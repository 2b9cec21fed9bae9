//! The flags of `mesh-controller metrics-api`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::values::listen_addr;
use super::{Log, Source};

#[derive(Debug, Args)]
pub struct MetricsApi {
    /// Address of the gRPC server
    #[arg(long, default_value = ":8085", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9995", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// URL of Prometheus, such as http://prometheus.linkerd-viz.svc.cluster.local:9090. Without it,
    /// only pods and Services are listed
    #[arg(long, value_name = "URL", default_value = "")]
    pub prometheus_url: String,
    /// File of the user name for Prometheus (basic authentication)
    #[arg(long, value_name = "FILE", requires = "prometheus_password_file")]
    pub prometheus_user_file: Option<PathBuf>,
    /// File of the password for Prometheus (basic authentication)
    #[arg(long, value_name = "FILE", requires = "prometheus_user_file")]
    pub prometheus_password_file: Option<PathBuf>,
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
