//! The DNS server of the node: dnsmasq, which listens on the addresses of the node.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{fs, io};

use super::helper::{Helper, HelperCommand, HelperSpec};
use crate::file;
use crate::network::Network;
use crate::node_paths::NodePaths;
use crate::service::dns::{CLUSTER_DOMAIN, Records};

pub(super) struct DnsServer {
    helper: Helper,
    directory: PathBuf,
    written: Records,
}

/// A file of the server could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write {path}")]
pub struct DnsError {
    path: PathBuf,
    source: io::Error,
}

/// TTL of local records in seconds, as in the DNS of Kubernetes.
const TTL: u32 = 5;

pub(super) fn start(paths: &NodePaths, network: &Network) -> Result<DnsServer, DnsError> {
    let directory = paths.dns();
    let records = Records::default();
    let config = directory.join("dnsmasq.conf");
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        file::write(&path, text.as_bytes(), 0o644).map_err(write_error(path))
    };
    write("dnsmasq.conf", &configuration(paths, network))?;
    write("hosts", &records.hosts)?;
    write("records.conf", &records.configuration)?;
    let helper = Helper::start(HelperSpec {
        program: "dnsmasq".into(),
        args: vec![
            "--keep-in-foreground".into(),
            format!("--conf-file={}", config.display()),
        ],
        log: paths.dns_log(),
    });
    Ok(DnsServer {
        helper,
        directory,
        written: records,
    })
}

impl DnsServer {
    /// Updates the records. dnsmasq reloads addresses on SIGHUP; other records require a restart.
    pub(super) async fn update(&mut self, records: Records) -> Result<(), DnsError> {
        let write = |name: &str, text: &str| {
            let path = self.directory.join(name);
            file::write(&path, text.as_bytes(), 0o644).map_err(write_error(path))
        };
        let hosts = records.hosts != self.written.hosts;
        let configuration = records.configuration != self.written.configuration;
        if hosts {
            write("hosts", &records.hosts)?;
        }
        if configuration {
            write("records.conf", &records.configuration)?;
            self.helper.send(HelperCommand::Restart).await;
        } else if hosts {
            self.helper.send(HelperCommand::Reload).await;
        }
        self.written = records;
        Ok(())
    }
}

fn configuration(paths: &NodePaths, network: &Network) -> String {
    let directory = paths.dns();
    let mut text = String::from("bind-interfaces\nno-hosts\nno-negcache\nlog-facility=-\n");
    for ip in network.node_ips() {
        let _ = writeln!(text, "listen-address={ip}");
    }
    let _ = writeln!(text, "local=/{CLUSTER_DOMAIN}/\nlocal-ttl={TTL}");
    let _ = writeln!(text, "addn-hosts={}", directory.join("hosts").display());
    let _ = writeln!(
        text,
        "conf-file={}",
        directory.join("records.conf").display()
    );
    let _ = writeln!(text, "pid-file={}", directory.join("dnsmasq.pid").display());
    if fs::metadata("/etc/resolv.conf").is_err() {
        // There is no resolver for names outside the cluster.
        text.push_str("no-resolv\n");
    }
    text
}

fn write_error(path: PathBuf) -> impl Fn(io::Error) -> DnsError {
    move |source| DnsError {
        path: path.clone(),
        source,
    }
}
