//! The flags of `mesh-controller bootstrap`.

use std::time::Duration;

use clap::Args;
use mesh_cluster::flags::{Cluster, Log};

use super::values::go_duration;

#[derive(Debug, Args)]
pub struct Bootstrap {
    /// Namespace of the control plane, where the objects are created
    #[arg(long, default_value = "linkerd")]
    pub controller_namespace: String,
    /// Trust domain, the suffix of every identity; empty for --cluster-domain
    #[arg(long, default_value = "")]
    pub identity_trust_domain: String,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Format of the issuer's Secret: crt.pem and key.pem for linkerd.io/tls, otherwise tls.crt and
    /// tls.key
    #[arg(long, default_value = "linkerd.io/tls")]
    pub identity_scheme: String,
    /// Lifetime of a created trust anchor. The default is ten years
    #[arg(long, default_value = "87600h", value_parser = go_duration)]
    pub trust_anchor_lifetime: Duration,
    /// Lifetime of a created issuer
    #[arg(long, default_value = "8760h", value_parser = go_duration)]
    pub issuer_lifetime: Duration,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mesh_cluster::certificate::authority::Authority;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: Bootstrap,
    }

    /// `meshctl identity rotate` creates certificates with the same lifetimes.
    #[test]
    fn default_lifetimes_are_those_of_every_authority() {
        let flags = Command::parse_from(["bootstrap"]).flags;
        assert_eq!(flags.trust_anchor_lifetime, Authority::ANCHOR_LIFETIME);
        assert_eq!(flags.issuer_lifetime, Authority::ISSUER_LIFETIME);
    }
}
