//! ExternalWorkloads.

use std::net::{AddrParseError, IpAddr};
use std::sync::Arc;

use mesh_core::annotation as keys;
use mesh_core::endpoint::TlsPeer;
use mesh_core::identity::Identity;
use mesh_core::ports::PortSet;
use mesh_k8s::crd;
use mesh_k8s::pod::ports;

use super::pod::{ZONE_LABEL, default_policy, warn_of_invalid_items};
use super::{ConvertError, annotation, name, owner, shared};
use crate::model::ExternalWorkload;

pub(crate) fn external_workload(
    workload: &crd::ExternalWorkload,
) -> Result<ExternalWorkload, ConvertError> {
    let meta = &workload.metadata;
    let ports = tcp_ports(workload)?;
    let named = |(name, number): &TcpPort| Some((name.clone()?, *number));
    let named_ports: Vec<(Arc<str>, u16)> = ports.iter().filter_map(named).collect();
    let ports_of = |name: &str| -> Vec<u16> {
        let of_name = named_ports.iter().filter(|(have, _)| **have == *name);
        of_name.map(|(_, number)| *number).collect()
    };
    let list = |key: &str| -> Option<PortSet> {
        let list = annotation(meta, key)?;
        warn_of_invalid_items(meta, key, ports::unresolved_items(list, ports_of));
        Some(ports::resolve_names(list, ports_of))
    };
    let labels = meta.labels.clone().unwrap_or_default();
    Ok(ExternalWorkload {
        name: name(meta),
        owner: owner(meta),
        tls: usable(workload, tls_peer(workload)),
        ips: usable(workload, ips(workload)).unwrap_or_default(),
        zone: labels.get(ZONE_LABEL).map(|zone| zone.as_str().into()),
        labels,
        ports: ports.iter().map(|(_, number)| *number).collect(),
        opaque_ports: list(keys::OPAQUE_PORTS),
        require_identity_ports: list(keys::REQUIRE_IDENTITY_PORTS).unwrap_or_default(),
        default_policy: default_policy(meta),
        named_ports,
    })
}

/// Returns what only endpoints need. The workload has policies without it.
fn usable<T>(workload: &crd::ExternalWorkload, read: Result<T, ConvertError>) -> Option<T> {
    read.inspect_err(|error| {
        let workload = name(&workload.metadata);
        tracing::warn!(%workload, %error, "ExternalWorkload is not an endpoint");
    })
    .ok()
}

fn tls_peer(workload: &crd::ExternalWorkload) -> Result<TlsPeer, ConvertError> {
    let tls = &workload.spec.mesh_tls;
    let parse = |field: &str, text: &str| {
        let parsed = Identity::parse(text);
        parsed.map_err(|error| ConvertError::new(format!("spec.meshTLS.{field}"), error))
    };
    let id = parse("identity", &tls.identity)?;
    let Identity::Dns(server_name) = parse("serverName", &tls.server_name)? else {
        let problem = "is a URI; expected a DNS name";
        return Err(ConvertError::new("spec.meshTLS.serverName", problem));
    };
    Ok(TlsPeer { id, server_name })
}

fn ips(workload: &crd::ExternalWorkload) -> Result<Vec<IpAddr>, ConvertError> {
    let mut ips = Vec::new();
    for (at, address) in workload.spec.workload_ips.iter().flatten().enumerate() {
        let ip = address.ip.parse().map_err(|error: AddrParseError| {
            let field = format!("spec.workloadIPs[{at}].ip");
            ConvertError::new(field, format!("{:?}: {error}", address.ip))
        });
        ips.push(ip?);
    }
    Ok(ips)
}

/// A TCP port, with its name.
type TcpPort = (Option<Arc<str>>, u16);

fn tcp_ports(workload: &crd::ExternalWorkload) -> Result<Vec<TcpPort>, ConvertError> {
    let mut ports = Vec::new();
    for (at, port) in workload.spec.ports.iter().flatten().enumerate() {
        if port.port == 0 {
            let field = format!("spec.ports[{at}].port");
            return Err(ConvertError::new(field, "is 0; expected 1 to 65535"));
        }
        if port.is_tcp() {
            ports.push((shared(&port.name), port.port));
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ExternalWorkload, ConvertError> {
        external_workload(&serde_norway::from_str(text).unwrap())
    }

    const WORKLOAD: &str = "
metadata:
  name: vm
  namespace: shop
  labels: {app: web}
  annotations:
    config.linkerd.io/opaque-ports: 'db, 9000-9001, none'
    config.linkerd.io/proxy-require-identity-inbound-ports: http
    config.linkerd.io/default-inbound-policy: deny
spec:
  meshTLS: {identity: vm.example, serverName: vm.example}
  ports: [{name: http, port: 8080}, {name: db, port: 3306}, {name: db, port: 53, protocol: UDP}, {port: 22}]
";

    #[test]
    fn annotations_apply_with_names_of_ports() {
        let workload = read(WORKLOAD).unwrap();
        assert_eq!(workload.opaque_ports.unwrap().to_string(), "3306,9000-9001");
        assert_eq!(workload.require_identity_ports.to_string(), "8080");
        assert_eq!(workload.default_policy, Some("deny".parse().unwrap()));
        assert_eq!(workload.ports, [8080, 3306, 22]);
        let names: Vec<_> = workload
            .named_ports
            .iter()
            .map(|(name, _)| &**name)
            .collect();
        assert_eq!(names, ["http", "db"]);
    }

    #[test]
    fn proxy_port_is_the_port_with_its_name() {
        assert_eq!(read(WORKLOAD).unwrap().proxy_port(), 4143);
        let named = WORKLOAD.replace("{port: 22}", "{name: linkerd-proxy, port: 4150}");
        assert_eq!(read(&named).unwrap().proxy_port(), 4150);
    }

    #[test]
    fn identity_is_a_name_or_a_spiffe_uri_and_the_server_name_is_a_name() {
        let with = |identity: &str, server_name: &str| {
            let tls = format!("meshTLS: {{identity: '{identity}', serverName: '{server_name}'}}");
            let default = "meshTLS: {identity: vm.example, serverName: vm.example}";
            read(&WORKLOAD.replace(default, &tls)).unwrap().tls
        };
        let uri = "spiffe://example.org/vm";
        let tls = with(uri, "VM.example").unwrap();
        assert_eq!((tls.id.as_str(), &*tls.server_name), (uri, "vm.example"));
        for (identity, server_name) in [
            ("a b", "vm"),
            ("http://example.org/vm", "vm"),
            ("vm", ""),
            ("vm", uri),
        ] {
            assert_eq!(
                with(identity, server_name),
                None,
                "{identity} {server_name}"
            );
        }
    }

    #[test]
    fn workload_with_an_invalid_address_has_none() {
        let spec = "spec:\n  workloadIPs: [{ip: 192.0.2.1}, {ip: 'fd00::1'}]";
        let with = |spec: &str| read(&WORKLOAD.replace("spec:", spec)).unwrap().ips;
        let valid = ["192.0.2.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(with(spec), valid);
        assert!(with(&spec.replace("fd00::1", "vm")).is_empty());
    }

    #[test]
    fn port_zero_is_refused() {
        let error = read(&WORKLOAD.replace("port: 22", "port: 0")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.ports[3].port: is 0; expected 1 to 65535"
        );
    }
}
