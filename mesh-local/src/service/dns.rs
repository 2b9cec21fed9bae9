//! DNS records as in a cluster: addresses of Services and of the pods of headless Services, and SRV
//! records of named ports. The DNS server reloads the file with addresses on a signal. SRV records
//! are part of its configuration, whose changes require a restart; they change only with headless
//! Services.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::endpoints::{is_ready, service_of};
use super::is_headless;
use crate::manifest::ObjectKey;

/// The DNS domain of the cluster.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// The contents of the two files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// `address name` lines.
    pub hosts: String,
    /// `srv-host` and `cname` lines.
    pub configuration: String,
}

/// Returns the records of all Services.
pub fn records(services: &BTreeMap<ObjectKey, Service>, slices: &[EndpointSlice]) -> Records {
    let mut hosts: BTreeSet<(String, IpAddr)> = BTreeSet::new();
    let mut lines: BTreeSet<String> = BTreeSet::new();
    // Resolvers query the server for "localhost.", because the trailing dot bypasses /etc/hosts.
    hosts.insert(("localhost".to_owned(), IpAddr::from([127, 0, 0, 1])));
    for (key, service) in services {
        let name = service_name(key);
        let Some(spec) = &service.spec else { continue };
        if let (Some("ExternalName"), Some(target)) = (spec.type_.as_deref(), &spec.external_name) {
            lines.insert(format!("cname={name},{target}"));
            continue;
        }
        if is_headless(service) {
            headless(key, &name, slices, &mut hosts, &mut lines);
            continue;
        }
        for text in spec.cluster_ips.iter().flatten() {
            if let Ok(ip) = text.parse() {
                hosts.insert((name.clone(), ip));
            }
        }
        for port in spec.ports.iter().flatten() {
            if let Some(port_name) = &port.name {
                let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
                lines.insert(format!(
                    "srv-host=_{port_name}._{protocol}.{name},{name},{}",
                    port.port
                ));
            }
        }
    }
    let mut records = Records::default();
    for (name, ip) in hosts {
        let _ = writeln!(records.hosts, "{ip} {name}");
    }
    for line in lines {
        let _ = writeln!(records.configuration, "{line}");
    }
    records
}

/// Returns a name such as `web.shop.svc.cluster.local`.
pub fn service_name(key: &ObjectKey) -> String {
    format!("{}.{}.svc.{CLUSTER_DOMAIN}", key.name, key.namespace)
}

fn headless(
    key: &ObjectKey,
    name: &str,
    slices: &[EndpointSlice],
    hosts: &mut BTreeSet<(String, IpAddr)>,
    lines: &mut BTreeSet<String>,
) {
    for slice in slices
        .iter()
        .filter(|slice| service_of(slice).as_ref() == Some(key))
    {
        for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
            let ips = endpoint
                .addresses
                .iter()
                .filter_map(|text| text.parse::<IpAddr>().ok());
            for ip in ips {
                // Endpoints without hostname are named after their address, as in CoreDNS.
                let host = endpoint.hostname.clone();
                let host = host.unwrap_or_else(|| ip.to_string().replace(['.', ':'], "-"));
                let host = format!("{host}.{name}");
                hosts.insert((name.to_owned(), ip));
                hosts.insert((host.clone(), ip));
                for port in slice.ports.iter().flatten() {
                    let (Some(number), Some(port_name)) = (port.port, &port.name) else {
                        continue;
                    };
                    // The proxy resolves its controllers by the SRV record of the Service name.
                    lines.insert(format!("srv-host={name},{host},{number}"));
                    if !port_name.is_empty() {
                        let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
                        lines.insert(format!(
                            "srv-host=_{port_name}._{protocol}.{name},{host},{number}"
                        ));
                    }
                }
            }
        }
    }
}
