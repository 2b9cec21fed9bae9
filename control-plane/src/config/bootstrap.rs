//! The flags of `mesh-controller bootstrap`.

use std::time::Duration;

use clap::Args;

use super::{Cluster, Log, values::go_duration};

#[derive(Debug, Args)]
pub struct Bootstrap {
    /// The namespace of the control plane, where everything is made
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// The end of every identity; empty for --cluster-domain
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,
    /// The end of the names of Services
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// How the issuer's Secret is written: crt.pem and key.pem for linkerd.io/tls, tls.crt and
    /// tls.key for anything else
    #[arg(long, default_value = "linkerd.io/tls")]
    pub identity_scheme: String,
    /// How long a trust anchor lives that is made here: ten years, since replacing it takes a
    /// rollout of every proxy
    #[arg(long, default_value = "87600h", value_parser = go_duration)]
    pub trust_anchor_lifetime: Duration,
    /// How long an issuer lives that is made here
    #[arg(long, default_value = "8760h", value_parser = go_duration)]
    pub issuer_lifetime: Duration,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
