//! The flags that programs of the control plane share.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use mesh_runtime::log::Format;

pub use crate::api_server::ClusterFlags as Cluster;

#[derive(Clone, Debug, Args)]
pub struct Log {
    /// Log level, for example warn,mesh=debug
    #[arg(long, default_value = "info", env = "MESH_CONTROLLER_LOG")]
    pub log_level: String,
    /// Log format: plain or json
    #[arg(long, default_value = "plain", value_parser = str::parse::<Format>)]
    pub log_format: Format,
}

#[derive(Clone, Debug, Args)]
pub struct Source {
    /// Directory of Kubernetes manifests that is watched instead of an API server. Can be repeated;
    /// an object in several directories is read from the last one
    #[arg(long = "source-dir", value_name = "DIR", conflicts_with = "kubeconfig")]
    pub dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// The address of a flag with only a port.
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// Parses `host:port`, or `:port` for all addresses of the host.
pub fn listen_addr(text: &str) -> Result<SocketAddr, String> {
    let parsed = match text.strip_prefix(':') {
        Some(port) => port
            .parse()
            .ok()
            .map(|port: u16| SocketAddr::from((ANY, port))),
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| "expected an address and port such as 0.0.0.0:8086 or :8086".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_may_omit_host() {
        assert_eq!(listen_addr(":80"), Ok("0.0.0.0:80".parse().unwrap()));
        assert_eq!(listen_addr("[::]:80"), Ok("[::]:80".parse().unwrap()));
        for bad in ["", ":", "80", ":65536", "localhost:80"] {
            assert!(listen_addr(bad).is_err(), "{bad}");
        }
    }
}
