//! The node's DNS server: dnsmasq on the node's own addresses.

use std::{fmt::Write as _, fs, io, path::PathBuf};

use super::{
    helper::{Helper, Order, Spec},
    publish::PublishError,
};
use crate::{
    file,
    instance::Instance,
    network::Network,
    service::dns::{CLUSTER_DOMAIN, Records},
};

pub(super) struct DnsServer {
    helper: Helper,
    folder: PathBuf,
    written: Records,
}

/// How long an answer of ours may be kept, in seconds; that of Kubernetes' own DNS.
const TTL: u32 = 5;

pub(super) fn start(instance: &Instance, network: &Network) -> Result<DnsServer, PublishError> {
    let folder = instance.dns();
    let records = Records::default();
    let config = folder.join("dnsmasq.conf");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        file::write(&path, text.as_bytes(), 0o644).map_err(write_error(path))
    };
    write("dnsmasq.conf", &configuration(instance, network))?;
    write("hosts", &records.hosts)?;
    write("records.conf", &records.configuration)?;
    let helper = Helper::start(Spec {
        program: "dnsmasq".into(),
        args: vec![
            "--keep-in-foreground".into(),
            format!("--conf-file={}", config.display()),
        ],
        log: instance.dns_log(),
    });
    Ok(DnsServer {
        helper,
        folder,
        written: records,
    })
}

impl DnsServer {
    /// Addresses are read again on a signal; for other records the server must start anew.
    pub(super) async fn update(&mut self, records: Records) -> Result<(), PublishError> {
        let write = |name: &str, text: &str| {
            let path = self.folder.join(name);
            file::write(&path, text.as_bytes(), 0o644).map_err(write_error(path))
        };
        let hosts = records.hosts != self.written.hosts;
        let configuration = records.configuration != self.written.configuration;
        if hosts {
            write("hosts", &records.hosts)?;
        }
        if configuration {
            write("records.conf", &records.configuration)?;
            self.helper.order(Order::Restart).await;
        } else if hosts {
            self.helper.order(Order::Reload).await;
        }
        self.written = records;
        Ok(())
    }
}

fn configuration(instance: &Instance, network: &Network) -> String {
    let folder = instance.dns();
    let mut text = String::from("bind-interfaces\nno-hosts\nno-negcache\nlog-facility=-\n");
    for ip in network.node_ips() {
        let _ = writeln!(text, "listen-address={ip}");
    }
    let _ = writeln!(text, "local=/{CLUSTER_DOMAIN}/\nlocal-ttl={TTL}");
    let _ = writeln!(text, "addn-hosts={}", folder.join("hosts").display());
    let _ = writeln!(text, "conf-file={}", folder.join("records.conf").display());
    let _ = writeln!(text, "pid-file={}", folder.join("dnsmasq.pid").display());
    if fs::metadata("/etc/resolv.conf").is_err() {
        // Nobody to ask for names outside the cluster.
        text.push_str("no-resolv\n");
    }
    text
}

fn write_error(path: PathBuf) -> impl Fn(io::Error) -> PublishError {
    move |source| PublishError::Write {
        path: path.clone(),
        source,
    }
}
