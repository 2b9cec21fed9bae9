//! What the mesh wants to know of a Pod, asked in one place.
//!
//! The index of the controllers, the injector and the local node all ask here, so that "is it
//! meshed", "which account" and "which ports are opaque" have one answer each.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use mesh_core::annotation;

pub mod owner;
pub mod ports;
pub mod probes;

/// The name of the proxy's container, by which its ports are found.
pub const PROXY_CONTAINER: &str = "linkerd-proxy";

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The namespace of the control plane the pod belongs to; a pod that has one is meshed.
pub fn control_plane_namespace(pod: &Pod) -> Option<&str> {
    label(pod, annotation::CONTROL_PLANE_NS).filter(|namespace| !namespace.is_empty())
}

/// `default` when the pod names none, as the API server would fill in.
pub fn service_account(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref())
        .filter(|name| !name.is_empty())
        .unwrap_or("default")
}

/// The pod's addresses, the primary one first. Unreadable ones are left out.
pub fn ips(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    for text in status.pod_ip.as_deref().into_iter().chain(listed) {
        if let Ok(ip) = text.parse()
            && !ips.contains(&ip)
        {
            ips.push(ip);
        }
    }
    ips
}

pub fn is_host_network(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.host_network == Some(true))
}

/// Is the condition `Ready` true?
pub fn is_ready(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        })
}

/// Has every container ended for good? Such a pod's addresses may belong to another by now.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Init containers first, as the kubelet starts them.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// The plain values of a container's environment; those that refer to something else are left out.
pub fn plain_env(container: &Container) -> BTreeMap<&str, &str> {
    container
        .env
        .iter()
        .flatten()
        .filter_map(|var| Some((var.name.as_str(), var.value.as_deref()?)))
        .collect()
}
