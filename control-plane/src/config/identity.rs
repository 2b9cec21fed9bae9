//! The flags of `mesh-controller identity`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;

use super::{
    Cluster, Log,
    values::{flag, go_duration, listen_addr, positive},
};

#[derive(Debug, Args)]
pub struct Identity {
    /// Where to serve gRPC
    #[arg(long, default_value = ":8080", value_parser = listen_addr)]
    pub addr: SocketAddr,
    /// Where to serve /live, /ready and /metrics
    #[arg(long, default_value = ":9990", value_parser = listen_addr)]
    pub admin_addr: SocketAddr,
    /// The namespace of the control plane, a part of every identity
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// The end of every identity; empty for --cluster-domain
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,
    /// The end of the names of Services
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// How the issuer's files are named: crt.pem and key.pem for linkerd.io/tls, tls.crt and
    /// tls.key for anything else
    #[arg(long, default_value = "linkerd.io/tls")]
    pub identity_scheme: String,
    /// How long certificates live
    #[arg(long, default_value = "24h0m0s", value_parser = go_duration)]
    pub identity_issuance_lifetime: Duration,
    /// How far the clocks of two nodes may be apart
    #[arg(long, default_value = "20s", value_parser = go_duration)]
    pub identity_clock_skew_allowance: Duration,
    /// The folder of the issuer's certificate and key
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/run/linkerd/identity/issuer"
    )]
    pub issuer_dir: PathBuf,
    /// The trust anchors, in PEM
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/run/linkerd/identity/trust-roots/ca-bundle.crt"
    )]
    pub trust_anchors: PathBuf,
    /// The public key, in PEM, that workload tokens are verified with,
    /// instead of asking the API server to review them
    #[arg(long, value_name = "FILE", conflicts_with = "kubeconfig")]
    pub token_verify_key: Option<PathBuf>,
    /// How many requests a second the API server may be asked
    #[arg(long, value_name = "N", default_value = "100", value_parser = positive)]
    pub kube_apiclient_qps: f64,
    /// How many requests may be made at once after a rest
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..))]
    pub kube_apiclient_burst: u32,
    /// Copy the trust anchors into each namespace that has meshed pods, so that running proxies
    /// learn new ones
    #[arg(long, default_value = "false", value_parser = flag, num_args = 0..=1, default_missing_value = "true", require_equals = true, conflicts_with = "token_verify_key")]
    pub publish_trust_roots: bool,
    /// The ClusterRole that owns the copies, so that they are deleted with it
    #[arg(long, value_name = "NAME", requires = "publish_trust_roots")]
    pub trust_roots_owner: Option<String>,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
