//! The flags of the validating webhooks: of `mesh-controller policy`, whose process serves one, and
//! of `mesh-controller sp-validator`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use mesh_cluster::flags::{Cluster, Log, listen_addr};

use super::values::flag;
use crate::validator::FailurePolicy;

/// The webhook of the policy controller.
#[derive(Debug, Args)]
pub struct PolicyValidator {
    /// Address of the HTTPS server of the webhook that validates policies
    #[arg(long, default_value = ":9443", value_parser = listen_addr)]
    pub server_addr: SocketAddr,
    /// Certificate of an externally managed webhook, in PEM. Without it, the controller generates
    /// and renews a certificate, stores it in a Secret and writes the caBundle of the webhook
    /// configuration
    #[arg(long, value_name = "FILE", requires = "server_tls_key")]
    pub server_tls_certs: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "server_tls_certs")]
    pub server_tls_key: Option<PathBuf>,
    /// Do not serve the webhook
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub admission_controller_disabled: bool,
    /// Decision about an object that the webhook could not review, as in the webhook configuration
    #[arg(long, value_enum, default_value_t = FailurePolicy::Fail)]
    pub webhook_failure_policy: FailurePolicy,
}

#[derive(Debug, Args)]
pub struct SpValidator {
    /// Address of the webhook's HTTPS server
    #[arg(long, default_value = ":8443", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9997", value_parser = listen_addr)]
    pub metrics_addr: SocketAddr,
    /// Namespace of the control plane, of the Service and of the certificate's Secret
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Directory of an externally managed certificate (tls.crt and tls.key) and caBundle. Without
    /// it, the validator generates and renews a certificate, stores it in a Secret and writes the
    /// caBundle of the webhook configuration
    #[arg(long, value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Decision about an object that the webhook could not review, as in the webhook configuration
    #[arg(long, value_enum, default_value_t = FailurePolicy::Fail)]
    pub webhook_failure_policy: FailurePolicy,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
