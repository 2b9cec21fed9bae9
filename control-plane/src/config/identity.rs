//! The flags of `mesh-controller identity`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mesh_cluster::flags::{Cluster, Log, listen_addr};

use super::values::{flag, go_duration, positive};

#[derive(Debug, Args)]
pub struct Identity {
    /// Address of the gRPC server
    #[arg(long, default_value = ":8080", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Address of the admin server: /live, /ready and /metrics
    #[arg(long, default_value = ":9990", value_parser = listen_addr)]
    pub admin_addr: SocketAddr,
    /// Namespace of the control plane, which is a part of every identity
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Trust domain, the suffix of every identity; empty for --cluster-domain
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Names of the issuer's files: crt.pem and key.pem for linkerd.io/tls, otherwise tls.crt and
    /// tls.key
    #[arg(long, default_value = "linkerd.io/tls")]
    pub identity_scheme: String,
    /// Lifetime of certificates
    #[arg(long, default_value = "24h0m0s", value_parser = go_duration)]
    pub identity_issuance_lifetime: Duration,
    /// Tolerated difference between the clocks of two nodes
    #[arg(long, default_value = "20s", value_parser = go_duration)]
    pub identity_clock_skew_allowance: Duration,
    /// Directory of the issuer's certificate and key
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/run/linkerd/identity/issuer"
    )]
    pub issuer_dir: PathBuf,
    /// Trust anchors, in PEM
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_anchors: PathBuf,
    /// Public key, in PEM, that verifies workload tokens instead of the API server
    #[arg(long, value_name = "FILE", conflicts_with = "kubeconfig")]
    pub token_verify_key: Option<PathBuf>,
    /// Maximum number of requests per second to the API server
    #[arg(long, value_name = "N", default_value = "100", value_parser = positive)]
    pub kube_apiclient_qps: f64,
    /// Maximum number of requests in a burst to the API server
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..))]
    pub kube_apiclient_burst: u32,
    /// Send the trust anchors to running proxies, so that they receive new ones
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub publish_trust_roots: bool,
    /// Address of the HTTPS server of the trust bundle, which linked clusters with trust anchors of
    /// their own fetch; without it there is none
    #[arg(long, value_parser = listen_addr)]
    pub trust_bundle_addr: Option<SocketAddr>,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
