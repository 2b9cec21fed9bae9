//! The flags of `mesh-viz tap`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use mesh_cluster::flags::{Cluster, Log, listen_addr};

#[derive(Debug, Args)]
pub struct Tap {
    /// Address of the extension API server
    #[arg(long, default_value = ":8089", value_parser = listen_addr)]
    pub apiserver_addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9998", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// Namespace of the control plane, whose pods can be tapped
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Trust domain of the identities of proxies
    #[arg(long, default_value = "cluster.local")]
    pub trust_domain: String,
    /// Port of the tap service of proxies
    #[arg(long, default_value_t = 4190)]
    pub tap_port: u16,
    /// Names of header fields that are left out of events
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub ignore_headers: Vec<String>,
    /// Namespace of the viz extension, of the Service and of the certificate's Secret
    #[arg(long, default_value = "linkerd-viz")]
    pub viz_namespace: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Directory of an externally managed certificate (tls.crt and tls.key), whose CA is in the
    /// APIService. Without it, the controller generates and renews a certificate, stores it in a
    /// Secret and writes the caBundle of the APIService
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Secret for the certificate that the controller generates
    #[arg(
        long,
        value_name = "NAME",
        default_value = "tap-k8s-tls",
        conflicts_with = "tls_dir"
    )]
    pub tls_secret: String,
    /// APIService of the tap API
    #[arg(long, value_name = "NAME", default_value = "v1alpha1.tap.linkerd.io")]
    pub api_service: String,
    /// Service of the controller, which the API server calls
    #[arg(long, value_name = "NAME", default_value = "tap")]
    pub service_name: String,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
