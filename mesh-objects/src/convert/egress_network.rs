//! EgressNetworks.

use mesh_core::annotation as keys;
use mesh_core::policy::inbound::Network;
use mesh_k8s::crd;

use super::{ConvertError, annotation, annotations, created, name, service};
use crate::model::{EgressNetwork, Kind, Name, TrafficPolicy};

/// The bounds of the custom resource definition, which objects of files have to keep as well.
const MAX_NETWORKS: usize = 256;
const MAX_EXCEPTIONS: usize = 64;

pub(crate) fn egress_network(network: crd::EgressNetwork) -> Result<EgressNetwork, ConvertError> {
    let (meta, spec) = (&network.metadata, network.spec);
    let own = name(meta);
    let networks = spec.networks.map(|list| networks(&own, list));
    let networks = networks.transpose()?;
    Ok(EgressNetwork {
        name: own,
        created: created(meta),
        policy: match spec.traffic_policy {
            crd::TrafficPolicy::Allow => TrafficPolicy::Allow,
            crd::TrafficPolicy::Deny => TrafficPolicy::Deny,
        },
        networks,
        // An EgressNetwork has no ports, and so no names of ports.
        opaque_ports: annotation(meta, keys::OPAQUE_PORTS)
            .map(|list| service::resolve_port_list(&[], list)),
        traffic: annotations::traffic_settings(Kind::EgressNetwork, meta),
    })
}

fn networks(own: &Name, networks: Vec<crd::Network>) -> Result<Vec<Network>, ConvertError> {
    let field = "spec.networks";
    match networks.len() {
        0 => {
            let problem = "is empty; remove the field for all addresses outside the cluster";
            return Err(ConvertError::new(field, problem));
        }
        1..=MAX_NETWORKS => {}
        count => {
            let problem = format!(
                "has {count} networks, more than {MAX_NETWORKS}; combine blocks or use several EgressNetworks"
            );
            return Err(ConvertError::new(field, problem));
        }
    }
    let convert = |(at, network): (usize, crd::Network)| {
        let except = network.except.unwrap_or_default();
        let invalid = |problem| ConvertError::new(format!("{field}[{at}].except"), problem);
        if except.len() > MAX_EXCEPTIONS {
            let count = except.len();
            return Err(invalid(format!(
                "has {count} blocks, more than {MAX_EXCEPTIONS}; combine blocks"
            )));
        }
        // It excludes nothing. The rest of the object is valid, and without it a policy that denies
        // would not.
        if let Some(outside) = except.iter().find(|net| !network.cidr.contains(*net)) {
            let problem = format!("is not in {}; remove it or correct the block", network.cidr);
            let field = format!("{field}[{at}].except");
            tracing::warn!(object = %own, field, block = %outside, problem, "Ignored an exception");
        }
        Ok(Network {
            net: network.cidr,
            except,
        })
    };
    networks.into_iter().enumerate().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: &str) -> Result<EgressNetwork, ConvertError> {
        let text = format!("metadata: {{name: outside, namespace: shop}}\nspec: {spec}\n");
        egress_network(serde_norway::from_str(&text).unwrap())
    }

    #[test]
    fn networks_and_exceptions_are_bounded() {
        let many = |count: usize, network: &str| vec![network; count].join(", ");
        let spec = |networks: &str| format!("{{trafficPolicy: Deny, networks: [{networks}]}}");
        assert_eq!(read("{trafficPolicy: Deny}").unwrap().networks, None);
        let full = read(&spec(&many(MAX_NETWORKS, "{cidr: 192.0.2.0/24}"))).unwrap();
        assert_eq!(full.networks.unwrap().len(), MAX_NETWORKS);
        let error = |networks: &str| read(&spec(networks)).unwrap_err().to_string();
        let text = error(&many(MAX_NETWORKS + 1, "{cidr: 192.0.2.0/24}"));
        assert!(
            text.starts_with("spec.networks: has 257 networks"),
            "{text}"
        );
        assert!(error("").contains("remove the field"));
        let except = |count| {
            let list = many(count, "192.0.2.1");
            format!("{{cidr: 203.0.113.0/24}}, {{cidr: 192.0.2.0/24, except: [{list}]}}")
        };
        assert!(read(&spec(&except(MAX_EXCEPTIONS))).is_ok());
        let text = error(&except(MAX_EXCEPTIONS + 1));
        assert!(
            text.starts_with("spec.networks[1].except: has 65 blocks"),
            "{text}"
        );
        // An exception outside of its block has no effect, and so no reason to drop a policy.
        assert!(read(&spec("{cidr: 192.0.2.0/24, except: [198.51.100.0/24]}")).is_ok());
    }
}
