//! The flags of `mesh-controller tap`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::values::listen_addr;
use super::{Cluster, Log};

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
    /// Directory of the certificate (tls.crt and tls.key), whose authority the APIService names
    #[arg(long, value_name = "DIR", default_value = "/var/run/linkerd/tls")]
    pub tls_dir: PathBuf,
    #[command(flatten)]
    pub cluster: Cluster,
    #[command(flatten)]
    pub log: Log,
}
