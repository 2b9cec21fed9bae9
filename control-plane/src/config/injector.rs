//! The flags of `mesh-controller proxy-injector`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{Cluster, Log, values::listen_addr};

#[derive(Debug, Args)]
pub struct ProxyInjector {
    /// Where to serve the webhook, with TLS
    #[arg(long, default_value = ":8443", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Where to serve /live, /ready and /metrics
    #[arg(long, default_value = ":9995", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// The namespace of the control plane, where the Service and the certificate's Secret are
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// The end of the names of Services
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// The values of the chart
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/run/linkerd/config/values"
    )]
    pub values_file: PathBuf,
    /// The trust anchors, in PEM
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_anchors: PathBuf,
    /// Serve with the certificate in this folder (tls.crt and tls.key), which somebody else renews
    /// and makes the API server trust. Without, the injector makes one, renews it, keeps it in a
    /// Secret and writes the caBundle of the webhook configuration
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// The Secret for the certificate that the injector makes
    #[arg(
        long,
        value_name = "NAME",
        default_value = "linkerd-proxy-injector-k8s-tls",
        conflicts_with = "tls_dir"
    )]
    pub tls_secret: String,
    /// The MutatingWebhookConfiguration that calls the injector
    #[arg(
        long,
        value_name = "NAME",
        default_value = "linkerd-proxy-injector-webhook-config"
    )]
    pub webhook_config: String,
    /// The Service by which the API server calls the injector
    #[arg(long, value_name = "NAME", default_value = "linkerd-proxy-injector")]
    pub service_name: String,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
