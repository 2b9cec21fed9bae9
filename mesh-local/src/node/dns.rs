//! The DNS server of the node: dnsmasq, which listens on the addresses of the node.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::helper::{Helper, HelperCommand, HelperSpec};
use crate::file::{self, FileError};
use crate::network::Network;
use crate::node_paths::NodePaths;
use crate::service::dns::{CLUSTER_DOMAIN, Records};

pub(super) struct DnsServer {
    helper: Helper,
    directory: PathBuf,
    written: Records,
}

/// TTL of local records in seconds, as in the DNS of Kubernetes.
const TTL: u32 = 5;

pub(super) fn start(paths: &NodePaths, network: &Network) -> Result<DnsServer, FileError> {
    let directory = paths.dns();
    let records = Records::default();
    let config = directory.join("dnsmasq.conf");
    write(&config, &configuration(paths, network))?;
    write(&directory.join("hosts"), &records.hosts)?;
    write(&directory.join("records.conf"), &records.configuration)?;
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
    pub(super) async fn update(&mut self, records: Records) -> Result<(), FileError> {
        let hosts = records.hosts != self.written.hosts;
        let configuration = records.configuration != self.written.configuration;
        if hosts {
            write(&self.directory.join("hosts"), &records.hosts)?;
        }
        if configuration {
            write(&self.directory.join("records.conf"), &records.configuration)?;
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

fn write(path: &Path, text: &str) -> Result<(), FileError> {
    file::write(path, text.as_bytes(), 0o644).map_err(file::failed("write", path))
}
