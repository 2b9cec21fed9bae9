//! EndpointSlices: the pods of a Service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mesh_k8s::pod::{self, ports};
use mesh_k8s::select;

use super::{families, is_headless};
use crate::manifest::ObjectKey;
use crate::network::Network;

/// The label with the name of the Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A pod with status, and whether it is terminating.
#[derive(Clone, Debug)]
pub struct RunningPod<'a> {
    pub pod: &'a Pod,
    pub terminating: bool,
}

/// Returns the slices of a Service with selector: one for each combination of address family and
/// target port numbers.
pub fn slices(
    network: &Network,
    node: &str,
    key: &ObjectKey,
    service: &Service,
    pods: &BTreeMap<ObjectKey, RunningPod<'_>>,
) -> Vec<EndpointSlice> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let families = families(network, service);
    let publish_not_ready = spec.publish_not_ready_addresses == Some(true);
    let mut groups: BTreeMap<(bool, Vec<i32>), Vec<Endpoint>> = BTreeMap::new();
    for (pod_key, running) in pods {
        let is_selected = pod_key.namespace == key.namespace
            && select::service_matches(
                spec.selector.as_ref(),
                running.pod.metadata.labels.as_ref(),
            );
        if !is_selected || pod::is_terminal(running.pod) {
            continue;
        }
        let targets = target_ports(running.pod, spec.ports.as_deref().unwrap_or_default());
        for v6 in &families {
            let of_family = |ip: &std::net::IpAddr| ip.is_ipv6() == *v6;
            let Some(ip) = pod::ips(running.pod).into_iter().find(of_family) else {
                continue;
            };
            groups
                .entry((*v6, targets.clone()))
                .or_default()
                .push(endpoint(
                    node,
                    &key.name,
                    running,
                    ip.to_string(),
                    publish_not_ready,
                ));
        }
    }
    let groups = groups.into_iter().enumerate();
    let slices = groups.map(|(index, ((v6, targets), endpoints))| EndpointSlice {
        metadata: meta(key, service, v6, index),
        address_type: if v6 { "IPv6".into() } else { "IPv4".into() },
        endpoints,
        ports: Some(slice_ports(
            spec.ports.as_deref().unwrap_or_default(),
            &targets,
        )),
    });
    slices.collect()
}

/// Returns whether the endpoint receives traffic.
pub fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions.and_then(|conditions| conditions.ready) != Some(false)
}

/// Returns the Service of a slice.
pub fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    let namespace = slice.metadata.namespace.clone().unwrap_or_default();
    Some(ObjectKey::new(namespace, labels.get(SERVICE_NAME)?))
}

/// Returns the target port numbers of the pod, with 0 for a name that it does not declare.
fn target_ports(pod: &Pod, service_ports: &[ServicePort]) -> Vec<i32> {
    let target = |port: &ServicePort| match &port.target_port {
        None | Some(IntOrString::Int(0)) => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => named(pod, name, port.protocol.as_deref()),
    };
    service_ports.iter().map(target).collect()
}

fn named(pod: &Pod, name: &str, protocol: Option<&str>) -> i32 {
    let Some(spec) = &pod.spec else { return 0 };
    let wanted = protocol.unwrap_or("TCP");
    ports::declared(spec)
        .find(|(_, port)| {
            port.name.as_deref() == Some(name)
                && port.protocol.as_deref().unwrap_or("TCP") == wanted
        })
        .map_or(0, |(_, port)| port.container_port)
}

fn slice_ports(service_ports: &[ServicePort], targets: &[i32]) -> Vec<EndpointPort> {
    let known = service_ports
        .iter()
        .zip(targets)
        .filter(|(_, target)| **target > 0);
    known
        .map(|(port, target)| EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(*target),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
            app_protocol: port.app_protocol.clone(),
        })
        .collect()
}

fn endpoint(
    node: &str,
    service: &str,
    running: &RunningPod<'_>,
    address: String,
    publish_not_ready: bool,
) -> Endpoint {
    let meta = &running.pod.metadata;
    let serving = pod::is_ready(running.pod);
    let spec = running.pod.spec.as_ref();
    let hostname = spec.and_then(|spec| {
        let in_subdomain = spec.subdomain.as_deref() == Some(service);
        in_subdomain
            .then(|| spec.hostname.clone().or_else(|| meta.name.clone()))
            .flatten()
    });
    Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(publish_not_ready || (serving && !running.terminating)),
            serving: Some(serving),
            terminating: Some(running.terminating),
        }),
        hostname,
        node_name: Some(node.to_owned()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

fn meta(key: &ObjectKey, service: &Service, v6: bool, index: usize) -> ObjectMeta {
    let family = if v6 { "v6" } else { "v4" };
    let mut labels = BTreeMap::from([
        (SERVICE_NAME.to_owned(), key.name.clone()),
        (
            "endpointslice.kubernetes.io/managed-by".to_owned(),
            "mesh-local".to_owned(),
        ),
    ]);
    if is_headless(service) {
        labels.insert("service.kubernetes.io/headless".into(), String::new());
    }
    ObjectMeta {
        name: Some(format!("{}-{family}-{index}", key.name)),
        namespace: Some(key.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Service".into(),
            name: key.name.clone(),
            uid: service.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}
