//! The flags of `mesh-viz tap-injector`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use mesh_cluster::flags::{Cluster, Log, listen_addr};
use mesh_core::identity::Identity;

#[derive(Debug, Args)]
pub struct TapInjector {
    /// Address of the webhook's HTTPS server
    #[arg(long, default_value = ":8443", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9995", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// Identity of the tap controller, the only client that proxies let observe requests
    #[arg(long, value_name = "IDENTITY", value_parser = Identity::parse)]
    pub tap_service_name: Identity,
    /// Namespace of the viz extension, of the Service and of the certificate's Secret
    #[arg(long, default_value = "linkerd-viz")]
    pub viz_namespace: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Directory of an externally managed certificate (tls.crt and tls.key) and caBundle. Without
    /// it, the injector generates and renews a certificate, stores it in a Secret and writes the
    /// caBundle of the webhook configuration
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Secret for the certificate that the injector generates
    #[arg(
        long,
        value_name = "NAME",
        default_value = "tap-injector-k8s-tls",
        conflicts_with = "tls_dir"
    )]
    pub tls_secret: String,
    /// MutatingWebhookConfiguration of the injector
    #[arg(
        long,
        value_name = "NAME",
        default_value = "linkerd-tap-injector-webhook-config"
    )]
    pub webhook_config: String,
    /// Service of the injector, which the API server calls
    #[arg(long, value_name = "NAME", default_value = "tap-injector")]
    pub service_name: String,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
