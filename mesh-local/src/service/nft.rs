//! The nftables table that implements Service addresses for all processes of the machine. A
//! connection to a Service is translated to a random ready endpoint. Connections to an address
//! without endpoints are rejected immediately instead of timing out. The source address is
//! masqueraded when a pod connects to itself through a Service, and when it connects to addresses
//! outside the node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::endpoints::{is_ready, service_of};
use crate::manifest::ObjectKey;
use crate::network::Network;

/// The priority of destination NAT. Not all hooks accept the name `dstnat`.
const DSTNAT_PRIORITY: i32 = -100;

/// Returns a script for `nft -f` that replaces the table atomically.
pub fn script(
    table: &str,
    network: &Network,
    services: &BTreeMap<ObjectKey, Service>,
    slices: &[EndpointSlice],
    pod_ips: &[IpAddr],
) -> String {
    let mut script =
        format!("table inet {table} {{}}\ndelete table inet {table}\ntable inet {table} {{\n");
    script.push_str("  chain services {\n");
    for (key, service) in services {
        for rule in rules(key, service, slices) {
            let _ = writeln!(script, "    {rule}");
        }
    }
    script.push_str("  }\n");
    for hook in ["prerouting", "output"] {
        let _ = writeln!(
            script,
            "  chain {hook} {{\n    type nat hook {hook} priority {DSTNAT_PRIORITY}; policy accept;\n    jump services\n  }}"
        );
    }
    script.push_str(
        "  chain postrouting {\n    type nat hook postrouting priority srcnat; policy accept;\n",
    );
    for ip in pod_ips {
        let family = family(ip);
        let _ = writeln!(
            script,
            "    {family} saddr {ip} {family} daddr {ip} masquerade"
        );
    }
    for (family, pods, services) in blocks(network) {
        let _ = writeln!(
            script,
            "    {family} saddr {pods} {family} daddr != {{ {pods}, {services} }} masquerade"
        );
    }
    script.push_str("  }\n");
    for hook in ["forward", "output"] {
        let _ = writeln!(
            script,
            "  chain refuse_{hook} {{\n    type filter hook {hook} priority filter; policy accept;"
        );
        for (family, _, services) in blocks(network) {
            for rule in refusals(network, family, &services) {
                let _ = writeln!(script, "    {rule}");
            }
        }
        script.push_str("  }\n");
    }
    script.push_str("}\n");
    script
}

/// Returns a DNAT rule for each address and port with ready endpoints.
fn rules(key: &ObjectKey, service: &Service, slices: &[EndpointSlice]) -> Vec<String> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    for ip in addresses(service) {
        for port in spec.ports.iter().flatten() {
            let name = port.name.as_deref().unwrap_or_default();
            let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
            let targets = targets(key, slices, name, &protocol, ip.is_ipv6());
            if targets.is_empty() {
                continue;
            }
            let family = family(&ip);
            let map: Vec<String> = targets
                .iter()
                .enumerate()
                .map(|(index, (target, port))| format!("{index} : {target} . {port}"))
                .collect();
            rules.push(format!(
                "{family} daddr {ip} {protocol} dport {} dnat {family} to numgen random mod {} map {{ {} }}",
                port.port,
                targets.len(),
                map.join(", ")
            ));
        }
    }
    rules
}

/// Returns the ready endpoints of a port in a stable order.
fn targets(
    key: &ObjectKey,
    slices: &[EndpointSlice],
    port_name: &str,
    protocol: &str,
    v6: bool,
) -> Vec<(IpAddr, i32)> {
    let mut targets = Vec::new();
    for slice in slices
        .iter()
        .filter(|slice| service_of(slice).as_ref() == Some(key))
    {
        let number = slice.ports.iter().flatten().find_map(|port| {
            let same = port.name.as_deref().unwrap_or_default() == port_name
                && port
                    .protocol
                    .as_deref()
                    .unwrap_or("TCP")
                    .eq_ignore_ascii_case(protocol);
            same.then_some(port.port).flatten()
        });
        let Some(number) = number else { continue };
        for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
            let ips = endpoint
                .addresses
                .iter()
                .filter_map(|text| text.parse::<IpAddr>().ok());
            targets.extend(ips.filter(|ip| ip.is_ipv6() == v6).map(|ip| (ip, number)));
        }
    }
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Returns rules that reject connections to a Service after translation, because the Service has no
/// endpoint. The address of the node is excluded, because its DNS server uses it.
fn refusals(network: &Network, family: &str, services: &str) -> [String; 2] {
    let own = network
        .node_ips()
        .into_iter()
        .find(|ip| self::family(ip) == family)
        .map(|ip| format!("{family} daddr != {ip} "))
        .unwrap_or_default();
    let prefix = format!("{family} daddr {services} {own}");
    [
        format!("{prefix}meta l4proto tcp reject with tcp reset"),
        format!("{prefix}reject"),
    ]
}

fn addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.iter();
    let texts = spec.flat_map(|spec| spec.cluster_ips.iter().flatten());
    texts.filter_map(|text| text.parse().ok())
}

fn blocks(network: &Network) -> Vec<(&'static str, String, String)> {
    let v4 = (
        "ip",
        network.pods_v4.to_string(),
        network.services_v4.to_string(),
    );
    let v6 = network.pods_v6.zip(network.services_v6);
    let v6 = v6.map(|(pods, services)| ("ip6", pods.to_string(), services.to_string()));
    [v4].into_iter().chain(v6).collect()
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv6() { "ip6" } else { "ip" }
}
