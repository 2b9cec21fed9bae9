//! Pods, nodes, ReplicaSets and Jobs.

use std::net::IpAddr;

use ipnet::IpNet;
use mesh_core::annotation as keys;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::{PortSet, PortSetError};
use mesh_k8s::kinds::core::{NodeSpec, PodSpec};
use mesh_k8s::kinds::{Node as K8sNode, ObjectMeta, Pod};
use mesh_k8s::pod as accessors;

use super::{annotation, name, owner, port_number, shared};
use crate::model::{ContainerPort, Name, Node, OwnedObject, Phase, PodRecord, ProxyPorts};

/// The label of a node with its zone.
pub(super) const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The label of a node with its region.
const REGION_LABEL: &str = "topology.kubernetes.io/region";
/// The label whose value the pods of one revision of a Deployment share.
const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// Bounds the warnings for one annotation, which may have thousands of items.
const MAX_WARNINGS: usize = 10;

pub fn pod(pod: &Pod) -> PodRecord {
    warn_of_invalid_ports(pod);
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let host_ips = status.iter().flat_map(|status| {
        let listed = status.host_ips.iter().flatten().map(|ip| ip.ip.as_str());
        status.host_ip.as_deref().into_iter().chain(listed)
    });
    PodRecord {
        name: name(meta),
        uid: shared(&meta.uid),
        labels: meta.labels.clone().unwrap_or_default(),
        owner: owner(meta),
        service_account: accessors::service_account(pod).into(),
        node: spec.and_then(|spec| shared(&spec.node_name)),
        phase: phase(status.and_then(|status| status.phase.as_deref())),
        terminating: meta.deletion_timestamp.is_some(),
        host_network: accessors::is_host_network(pod),
        ips: accessors::ips(pod),
        host_ips: accessors::unique_ips(host_ips),
        ports: spec.map(container_ports).unwrap_or_default(),
        control_plane_ns: accessors::control_plane_namespace(pod).map(Into::into),
        pod_template_hash: accessors::label(pod, POD_TEMPLATE_HASH).map(Into::into),
        opaque_ports: accessors::ports::opaque(pod),
        skip_inbound_ports: accessors::ports::skip_inbound(pod),
        require_identity_ports: port_list(pod, keys::REQUIRE_IDENTITY_PORTS),
        default_policy: default_policy(meta),
        proxy: accessors::ports::proxy_ports(pod).map(|ports| ProxyPorts {
            inbound: ports.inbound,
            control: ports.control,
            admin: ports.admin,
        }),
        probes: spec.map(accessors::probes::by_port).unwrap_or_default(),
    }
}

pub(crate) fn node(node: &K8sNode) -> Node {
    let labels = node.metadata.labels.as_ref();
    let label = |key| Some(labels?.get(key)?.as_str().into());
    Node {
        name: Name::new("", node.metadata.name.as_deref().unwrap_or_default()),
        zone: label(ZONE_LABEL),
        region: label(REGION_LABEL),
        pod_gateways: node.spec.as_ref().map(pod_gateways).unwrap_or_default(),
    }
}

/// Returns the address that plugins with `host-local` addresses give to the node in each of its
/// networks of pods: the one after the network's own. A network without such an address has none.
fn pod_gateways(spec: &NodeSpec) -> Vec<IpAddr> {
    let networks = match &spec.pod_cidrs {
        Some(networks) => networks.as_slice(),
        None => spec.pod_cidr.as_slice(),
    };
    let gateway = |text: &String| {
        let network: IpNet = text.parse().ok()?;
        let gateway = match network.network() {
            IpAddr::V4(first) => IpAddr::V4((u32::from(first).checked_add(1)?).into()),
            IpAddr::V6(first) => IpAddr::V6((u128::from(first).checked_add(1)?).into()),
        };
        network.contains(&gateway).then_some(gateway)
    };
    networks.iter().filter_map(gateway).collect()
}

pub(crate) fn owned_object(meta: &ObjectMeta) -> OwnedObject {
    OwnedObject {
        name: name(meta),
        owner: owner(meta),
    }
}

/// A pod without a reported phase is pending.
fn phase(phase: Option<&str>) -> Phase {
    match phase {
        Some("Running") => Phase::Running,
        Some("Succeeded" | "Failed") => Phase::Terminated,
        _ => Phase::Pending,
    }
}

fn container_ports(spec: &PodSpec) -> Vec<ContainerPort> {
    accessors::ports::declared(spec)
        .filter_map(|(_, port)| {
            Some(ContainerPort {
                name: shared(&port.name),
                number: port_number(port.container_port)?,
                host_port: port.host_port.and_then(port_number),
                host_ip: port.host_ip.as_deref().and_then(host_ip),
                tcp: accessors::ports::is_tcp(port),
            })
        })
        .collect()
}

/// The unspecified address means all addresses of the host.
fn host_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|ip: &IpAddr| !ip.is_unspecified())
}

/// Returns the valid items of a list, with names of container ports resolved. An invalid item must
/// not remove the restriction from the other ports of the list.
fn port_list(pod: &Pod, key: &str) -> PortSet {
    accessors::annotation(pod, key)
        .map(|list| accessors::ports::resolve_list(pod.spec.as_ref(), list))
        .unwrap_or_default()
}

/// Returns the policy of a workload's ports without Server; `None` for the policy of the cluster.
/// The injector writes the namespace's annotation to its pods.
///
/// An invalid policy denies: the injector's webhook rejects it in a pod, so this pod bypassed the
/// webhook, and any other policy could authorize more clients than intended.
pub fn default_policy(meta: &ObjectMeta) -> Option<DefaultPolicy> {
    let text = annotation(meta, keys::DEFAULT_INBOUND_POLICY)?;
    Some(text.parse().unwrap_or_else(|error| {
        let key = keys::DEFAULT_INBOUND_POLICY;
        tracing::error!(object = %name(meta), annotation = key, %error, "Denying all clients of a workload: invalid annotation");
        DefaultPolicy::Deny
    }))
}

/// Logs the invalid items of lists of ports.
fn warn_of_invalid_ports(pod: &Pod) {
    let invalid = |list| accessors::ports::unreadable_items(pod.spec.as_ref(), list);
    for key in [
        keys::OPAQUE_PORTS,
        keys::SKIP_INBOUND_PORTS,
        keys::REQUIRE_IDENTITY_PORTS,
    ] {
        let list = accessors::annotation(pod, key).unwrap_or_default();
        warn_of_invalid_items(&pod.metadata, key, invalid(list));
    }
}

pub(super) fn warn_of_invalid_items(
    meta: &ObjectMeta,
    key: &str,
    errors: impl Iterator<Item = PortSetError>,
) {
    for error in errors.take(MAX_WARNINGS) {
        tracing::warn!(object = %name(meta), annotation = key, %error, "Ignored invalid item of annotation");
    }
}
