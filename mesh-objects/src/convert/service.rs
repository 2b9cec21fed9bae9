//! Services and EndpointSlices.

use std::sync::Arc;

use mesh_core::annotation as keys;
use mesh_core::endpoint::TlsPeer;
use mesh_core::identity::Identity;
use mesh_core::locality::Failover;
use mesh_core::ports::PortSet;
use mesh_core::units::list_items;
use mesh_k8s::kinds::{EndpointSlice, ObjectMeta, Service as K8sService, core, discovery};
use mesh_k8s::pod::unique_ips;

use super::{annotation, annotations, name, port_number, shared};
use crate::model::{
    GatewayIdentity, Kind, Member, Members, Name, RemoteService, Service, ServicePort, Slice,
    SliceEndpoint, SlicePort, SliceTarget,
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
    let members = members(meta).map(Arc::new);
    let distribution = distribution(meta, spec.traffic_distribution.as_deref());
    let failover = annotations::failover(meta).or_else(|| {
        // For other Services Kubernetes writes hints into their EndpointSlices.
        members.as_ref().and(distribution).map(|it| match it {
            Distribution::SameZone => Failover::same_zone(),
            Distribution::SameNode => Failover::same_node(),
        })
    });
    Service {
        name: name(meta),
        uid: shared(&meta.uid),
        external_name: spec.type_.as_deref() == Some("ExternalName"),
        // A headless Service has "None".
        cluster_ips: unique_ips(cluster_ips),
        ports,
        opaque_ports,
        local_traffic: spec.internal_traffic_policy.as_deref() == Some("Local"),
        prefers_same_node: distribution == Some(Distribution::SameNode),
        failover: failover.map(Arc::new),
        traffic: annotations::traffic_settings(Kind::Service, meta),
        members,
    }
}

/// The values of `spec.trafficDistribution`.
#[derive(Clone, Copy, PartialEq)]
enum Distribution {
    SameZone,
    SameNode,
}

/// Reads `spec.trafficDistribution`. An unknown value has no effect, as in Kubernetes.
fn distribution(meta: &ObjectMeta, value: Option<&str>) -> Option<Distribution> {
    match value? {
        "PreferClose" | "PreferSameZone" => Some(Distribution::SameZone),
        "PreferSameNode" => Some(Distribution::SameNode),
        other => {
            let service = name(meta);
            tracing::warn!(%service, value = other, "Ignored an unknown spec.trafficDistribution; expected PreferSameZone, PreferSameNode or PreferClose");
            None
        }
    }
}

/// Returns the Services that have the endpoints of a Service. Annotations make it a federated one,
/// and come before the labels of remote discovery, as in Linkerd.
fn members(meta: &ObjectMeta) -> Option<Members> {
    let remote = annotation(meta, keys::REMOTE_DISCOVERY);
    let local = annotation(meta, keys::LOCAL_DISCOVERY).filter(|name| !name.is_empty());
    if remote.is_some() || local.is_some() {
        return Some(Members {
            local: local_members(meta, local.unwrap_or_default()),
            remote: federated(meta, remote.unwrap_or_default()),
        });
    }
    let label = |key: &str| Some(meta.labels.as_ref()?.get(key)?.as_str());
    let cluster = label(keys::REMOTE_DISCOVERY)?;
    let Some(service) = label(keys::REMOTE_SERVICE) else {
        let service = name(meta);
        tracing::warn!(%service, label = keys::REMOTE_SERVICE, "A Service for remote discovery does not name the Service of its cluster, and has no endpoints");
        return Some(Members::default());
    };
    Some(Members {
        local: Vec::new(),
        remote: vec![Member {
            cluster: cluster.into(),
            service: service.into(),
        }],
    })
}

/// The most members of a federated Service in its own cluster, and in others. Each costs every
/// watch of the Service a lookup with each change.
const MAX_MEMBERS: usize = 256;

/// Parses the names of Services, separated by commas. Linkerd reads one name.
fn local_members(meta: &ObjectMeta, list: &str) -> Vec<Arc<str>> {
    let mut members: Vec<Arc<str>> = Vec::new();
    for item in list_items(list) {
        if members.len() == MAX_MEMBERS {
            warn_of_further_members(meta, keys::LOCAL_DISCOVERY);
            break;
        }
        if !members.iter().any(|known| **known == *item) {
            members.push(item.into());
        }
    }
    members
}

/// Parses `SERVICE@CLUSTER`, separated by commas. Skips invalid items with a warning.
fn federated(meta: &ObjectMeta, list: &str) -> Vec<Member> {
    let mut members = Vec::new();
    for item in list_items(list) {
        if members.len() == MAX_MEMBERS {
            warn_of_further_members(meta, keys::REMOTE_DISCOVERY);
            break;
        }
        match item.split_once('@') {
            Some((service, cluster)) if !service.is_empty() && !cluster.is_empty() => {
                let member = Member {
                    cluster: cluster.into(),
                    service: service.into(),
                };
                if !members.contains(&member) {
                    members.push(member);
                }
            }
            _ => {
                let service = name(meta);
                tracing::warn!(%service, annotation = keys::REMOTE_DISCOVERY, item, "Ignored invalid item of annotation; expected SERVICE@CLUSTER");
            }
        }
    }
    members
}

fn warn_of_further_members(meta: &ObjectMeta, annotation: &str) {
    let service = name(meta);
    tracing::warn!(%service, annotation, "Ignored further members; a Service may have {MAX_MEMBERS}");
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
    let terminating = conditions.terminating == Some(true);
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
        terminating,
        serves_until_deleted: terminating && conditions.serving == Some(true),
        target,
        hostname: shared(&endpoint.hostname),
        zone: shared(&endpoint.zone),
        zone_hints: zones.map(|zone| zone.name.as_str().into()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &str, labels: &str, spec: &str) -> Service {
        let text = format!(
            "metadata: {{name: web, namespace: shop, annotations: {{{annotations}}}, labels: {{{labels}}}}}
spec: {{{spec}}}"
        );
        let read: K8sService = serde_norway::from_str(&text).unwrap();
        service(&read)
    }

    fn of(annotations: &str, labels: &str) -> Option<Members> {
        let members = read(annotations, labels, "").members;
        members.map(|members| Members::clone(&members))
    }

    fn member(service: &str, cluster: &str) -> Member {
        Member {
            cluster: cluster.into(),
            service: service.into(),
        }
    }

    #[test]
    fn annotations_name_the_members_of_a_federated_service() {
        let remote = "multicluster.linkerd.io/remote-discovery";
        let local = "multicluster.linkerd.io/local-discovery";
        let label = format!("{remote}: west, multicluster.linkerd.io/remote-service: api");
        for (annotations, labels, expected) in [
            ("", "", None),
            (
                &*format!("{remote}: 'web@east, web@east, api@west, web, @, web@, @east'"),
                "",
                Some((vec![], vec![member("web", "east"), member("api", "west")])),
            ),
            (
                &format!("{remote}: 'web@east', {local}: web"),
                &label,
                Some((vec!["web"], vec![member("web", "east")])),
            ),
            (&format!("{local}: web"), "", Some((vec!["web"], vec![]))),
            (
                &format!("{local}: 'web, web-east,,web'"),
                "",
                Some((vec!["web", "web-east"], vec![])),
            ),
            ("", &label, Some((vec![], vec![member("api", "west")]))),
            ("", &format!("{remote}: west"), Some((vec![], vec![]))),
        ] {
            let expected = expected.map(|(local, remote)| Members {
                local: local.into_iter().map(Arc::from).collect(),
                remote,
            });
            assert_eq!(of(annotations, labels), expected, "{annotations} {labels}");
        }
    }

    #[test]
    fn members_are_bounded() {
        let members: Vec<_> = (0..MAX_MEMBERS + 10).map(|n| format!("web@c{n}")).collect();
        let annotation = format!(
            "multicluster.linkerd.io/remote-discovery: '{}'",
            members.join(",")
        );
        assert_eq!(of(&annotation, "").unwrap().remote.len(), MAX_MEMBERS);
        let annotation = annotation.replace("remote-", "local-");
        assert_eq!(of(&annotation, "").unwrap().local.len(), MAX_MEMBERS);
    }

    #[test]
    fn annotation_comes_before_the_traffic_distribution_which_decides_about_members_alone() {
        let annotated = |value: &str| format!("locality.linkerd.io/failover: '{value}'");
        let members = "multicluster.linkerd.io/local-discovery: web";
        let distribution = |value: &str| format!("trafficDistribution: {value}");
        for (annotations, spec, failover, same_node) in [
            ("", String::new(), None, false),
            ("", distribution("PreferClose"), None, false),
            ("", distribution("PreferSameNode"), None, true),
            (members, String::new(), None, false),
            (members, distribution("PreferClose"), Some("zone"), false),
            (members, distribution("PreferSameZone"), Some("zone"), false),
            (
                members,
                distribution("PreferSameNode"),
                Some("node, zone"),
                true,
            ),
            (members, distribution("PreferNothing"), None, false),
            (
                &annotated("region=50%"),
                String::new(),
                Some("region=50%"),
                false,
            ),
            (
                &(annotated("region") + ", " + members),
                distribution("PreferClose"),
                Some("region"),
                false,
            ),
            // An invalid annotation counts as absent.
            (&annotated("rack"), String::new(), None, false),
            (
                &(annotated("rack") + ", " + members),
                distribution("PreferClose"),
                Some("zone"),
                false,
            ),
        ] {
            let service = read(annotations, "", &spec);
            let expected = failover.map(|text| Arc::new(text.parse().unwrap()));
            assert_eq!(service.failover, expected, "{annotations} {spec}");
            assert_eq!(service.prefers_same_node, same_node, "{annotations} {spec}");
        }
    }

    #[test]
    fn conditions_of_an_endpoint_that_are_unknown_count_as_ready_and_staying() {
        for (conditions, ready, terminating, serves) in [
            ("", true, false, false),
            ("ready: false", false, false, false),
            ("ready: false, terminating: true", false, true, false),
            (
                "ready: false, serving: true, terminating: true",
                false,
                true,
                true,
            ),
            (
                "ready: true, serving: true, terminating: false",
                true,
                false,
                false,
            ),
        ] {
            let text = format!("{{addresses: [10.1.0.1], conditions: {{{conditions}}}}}");
            let read = slice_endpoint("shop", &serde_norway::from_str(&text).unwrap());
            let found = (read.ready, read.terminating, read.serves_until_deleted);
            assert_eq!(found, (ready, terminating, serves), "{conditions}");
        }
    }
}
