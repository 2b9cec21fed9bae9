//! Services and EndpointSlices.

use std::sync::Arc;

use mesh_core::annotation as keys;
use mesh_core::endpoint::TlsPeer;
use mesh_core::identity::Identity;
use mesh_core::ports::PortSet;
use mesh_core::units::list_items;
use mesh_k8s::kinds::{EndpointSlice, ObjectMeta, Service as K8sService, core, discovery};
use mesh_k8s::pod::unique_ips;

use super::{annotation, annotations, name, port_number, shared};
use crate::model::{
    GatewayIdentity, Kind, Name, RemoteService, Service, ServicePort, Slice, SliceEndpoint,
    SlicePort, SliceTarget,
};

/// The label of an EndpointSlice with the name of its Service.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

pub(crate) fn service(service: &K8sService) -> Service {
    let meta = &service.metadata;
    let spec = service.spec.clone().unwrap_or_default();
    let ports: Vec<ServicePort> = spec
        .ports
        .iter()
        .flatten()
        .filter(|port| matches!(port.protocol.as_deref(), None | Some("" | "TCP")))
        .filter_map(service_port)
        .collect();
    let opaque_ports =
        annotation(meta, keys::OPAQUE_PORTS).map(|list| resolve_port_list(&ports, list));
    let listed = spec.cluster_ips.iter().flatten().map(String::as_str);
    let cluster_ips = spec.cluster_ip.as_deref().into_iter().chain(listed);
    Service {
        name: name(meta),
        uid: shared(&meta.uid),
        external_name: spec.type_.as_deref() == Some("ExternalName"),
        // A headless Service has "None".
        cluster_ips: unique_ips(cluster_ips),
        ports,
        opaque_ports,
        local_traffic: spec.internal_traffic_policy.as_deref() == Some("Local"),
        traffic: annotations::traffic_settings(Kind::Service, meta),
    }
}

fn service_port(port: &core::ServicePort) -> Option<ServicePort> {
    Some(ServicePort {
        name: shared(&port.name),
        number: port_number(port.port)?,
        app_protocol: port
            .app_protocol
            .as_deref()
            .map(|protocol| protocol.to_ascii_lowercase().into()),
    })
}

/// Parses numbers, ranges and names of service ports. Skips invalid items with a warning.
pub(super) fn resolve_port_list(ports: &[ServicePort], list: &str) -> PortSet {
    let mut set = PortSet::default();
    for item in list_items(list) {
        let named = ports.iter().find(|port| port.name.as_deref() == Some(item));
        match (PortSet::parse_item(item), named) {
            (Ok(range), _) => set.insert(range),
            (Err(_), Some(port)) => set.insert(port.number..=port.number),
            (Err(error), None) => {
                tracing::warn!(annotation = keys::OPAQUE_PORTS, %error, "Ignored invalid item of annotation");
            }
        }
    }
    set
}

pub(crate) fn endpoint_slice(slice: &EndpointSlice) -> Slice {
    let meta = &slice.metadata;
    let label = meta
        .labels
        .as_ref()
        .and_then(|labels| labels.get(SERVICE_LABEL));
    let owner = meta
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.kind == "Service");
    let service = label
        .map(String::as_str)
        .or(owner.map(|owner| owner.name.as_str()))
        .map(Arc::from);
    Slice {
        name: name(meta),
        service,
        ports: slice
            .ports
            .iter()
            .flatten()
            .map(|port| SlicePort {
                name: shared(&port.name),
                number: port.port.and_then(port_number),
            })
            .collect(),
        endpoints: slice
            .endpoints
            .iter()
            .map(|endpoint| slice_endpoint(meta.namespace.as_deref().unwrap_or_default(), endpoint))
            .collect(),
        remote: remote_service(meta).map(Arc::new),
    }
}

/// Returns the Service of another cluster whose mirror a slice belongs to. Kubernetes copies labels
/// and annotations of the mirror's Endpoints to its slices.
fn remote_service(meta: &ObjectMeta) -> Option<RemoteService> {
    let fqn = annotation(meta, keys::REMOTE_SERVICE_FQN).filter(|fqn| !fqn.is_empty())?;
    let labels = meta.labels.as_ref();
    let cluster = labels.and_then(|labels| labels.get(keys::MIRRORED_CLUSTER));
    Some(RemoteService {
        fqn: fqn.into(),
        cluster: cluster.map(|cluster| cluster.as_str().into()),
        gateway: gateway_identity(meta),
    })
}

fn gateway_identity(meta: &ObjectMeta) -> GatewayIdentity {
    let Some(id) = annotation(meta, keys::REMOTE_GATEWAY_IDENTITY).filter(|id| !id.is_empty())
    else {
        return GatewayIdentity::None;
    };
    match Identity::parse(id) {
        Ok(Identity::Dns(server_name)) => GatewayIdentity::Peer(TlsPeer {
            id: Identity::Dns(server_name.clone()),
            server_name,
        }),
        Ok(Identity::Uri(_)) | Err(_) => {
            let slice = name(meta);
            tracing::warn!(%slice, annotation = keys::REMOTE_GATEWAY_IDENTITY, identity = id, "The identity of a gateway is not a DNS name; its endpoints are left out");
            GatewayIdentity::Invalid
        }
    }
}

fn slice_endpoint(namespace: &str, endpoint: &discovery::Endpoint) -> SliceEndpoint {
    let target = endpoint.target_ref.as_ref();
    let target = target.map_or(SliceTarget::None, |target| {
        let name = Name::new(
            target.namespace.as_deref().unwrap_or(namespace),
            target.name.as_deref().unwrap_or_default(),
        );
        match target.kind.as_deref() {
            Some("Pod") => SliceTarget::Pod(name),
            Some("ExternalWorkload") => SliceTarget::External(name),
            _ => SliceTarget::Other,
        }
    });
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let zones = endpoint
        .hints
        .iter()
        .flat_map(|hints| hints.for_zones.iter().flatten());
    SliceEndpoint {
        addresses: endpoint
            .addresses
            .iter()
            .filter_map(|address| address.parse().ok())
            .collect(),
        // Kubernetes defines an unknown condition as ready.
        ready: conditions.ready != Some(false),
        serves_until_deleted: conditions.terminating == Some(true)
            && conditions.serving == Some(true),
        target,
        hostname: shared(&endpoint.hostname),
        zone: shared(&endpoint.zone),
        zone_hints: zones.map(|zone| zone.name.as_str().into()).collect(),
    }
}
