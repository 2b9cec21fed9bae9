//! Accessors of a Pod.
//!
//! The controllers, the injector and the local node all use these accessors, so that they agree
//! which pods are meshed, and which service account and opaque ports they have.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;
use mesh_core::units::parse_bool;

pub mod owner;
pub mod ports;
pub mod probes;

/// The name of the proxy's container.
pub const PROXY_CONTAINER: &str = "linkerd-proxy";

/// The name of the container that redirects a pod by itself, on nodes without an agent.
pub const INIT_CONTAINER: &str = "linkerd-init";

/// Returns the value of an annotation of the pod.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    meta_annotation(&pod.metadata, key)
}

/// Returns the value of an annotation of any object.
pub fn meta_annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns whether a boolean annotation of any object is true.
pub fn is_annotated(meta: &ObjectMeta, key: &str) -> bool {
    meta_annotation(meta, key).and_then(parse_bool) == Some(true)
}

/// Returns the value of a label of the pod.
pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the namespace of the control plane that injected the pod; `None` for a pod without a
/// proxy.
pub fn control_plane_namespace(pod: &Pod) -> Option<&str> {
    label(pod, annotation::CONTROL_PLANE_NS).filter(|namespace| !namespace.is_empty())
}

/// Returns the pod's service account, or `default`, which the API server uses when the spec has
/// none.
pub fn service_account(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref())
        .filter(|name| !name.is_empty())
        .unwrap_or("default")
}

/// Returns the pod's addresses, the primary one first, without invalid and duplicate ones.
pub fn ips(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    unique_ips(status.pod_ip.as_deref().into_iter().chain(listed))
}

/// Parses addresses, without invalid and duplicate ones.
pub fn unique_ips<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in texts.filter_map(|text| text.parse().ok()) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    ips
}

/// Returns whether the pod uses the network namespace of the node.
pub fn is_host_network(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.host_network == Some(true))
}

/// Returns a condition of the pod, such as `Ready`.
pub fn condition<'a>(pod: &'a Pod, name: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == name)
}

/// Returns whether the condition `Ready` is true.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Returns whether the pod's phase is `Succeeded` or `Failed`. The addresses of such a pod may
/// already belong to another pod.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the containers of the spec, init containers first.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// Returns the environment variables of a container that have a literal value (`value`, not
/// `valueFrom`).
pub fn plain_env(container: &Container) -> BTreeMap<&str, &str> {
    container
        .env
        .iter()
        .flatten()
        .filter_map(|var| Some((var.name.as_str(), var.value.as_deref()?)))
        .collect()
}
