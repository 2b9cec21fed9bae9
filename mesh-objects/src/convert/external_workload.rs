//! ExternalWorkloads.

use std::sync::Arc;

use mesh_core::annotation as keys;
use mesh_core::ports::PortSet;
use mesh_k8s::crd;
use mesh_k8s::pod::ports;

use super::pod::{default_policy, warn_of_invalid_items};
use super::{ConvertError, annotation, name, shared};
use crate::model::ExternalWorkload;

pub(crate) fn external_workload(
    workload: &crd::ExternalWorkload,
) -> Result<ExternalWorkload, ConvertError> {
    let meta = &workload.metadata;
    let named_ports = named_ports(workload)?;
    let ports_of = |name: &str| -> Vec<u16> {
        let of_name = named_ports.iter().filter(|(have, _)| **have == *name);
        of_name.map(|(_, number)| *number).collect()
    };
    let list = |key: &str| -> Option<PortSet> {
        let list = annotation(meta, key)?;
        warn_of_invalid_items(meta, key, ports::unresolved_items(list, ports_of));
        Some(ports::resolve_names(list, ports_of))
    };
    Ok(ExternalWorkload {
        name: name(meta),
        labels: meta.labels.clone().unwrap_or_default(),
        opaque_ports: list(keys::OPAQUE_PORTS),
        require_identity_ports: list(keys::REQUIRE_IDENTITY_PORTS).unwrap_or_default(),
        default_policy: default_policy(meta),
        named_ports,
    })
}

fn named_ports(workload: &crd::ExternalWorkload) -> Result<Vec<(Arc<str>, u16)>, ConvertError> {
    let mut named = Vec::new();
    for (at, port) in workload.spec.ports.iter().flatten().enumerate() {
        if port.port == 0 {
            let field = format!("spec.ports[{at}].port");
            return Err(ConvertError::new(field, "is 0; expected 1 to 65535"));
        }
        if let Some(name) = shared(&port.name)
            && port.is_tcp()
        {
            named.push((name, port.port));
        }
    }
    Ok(named)
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
        let names: Vec<_> = workload
            .named_ports
            .iter()
            .map(|(name, _)| &**name)
            .collect();
        assert_eq!(names, ["http", "db"]);
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
