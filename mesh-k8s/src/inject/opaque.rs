//! `config.linkerd.io/opaque-ports`: which of the default opaque ports an object really uses, and what the proxy is told.

use k8s_openapi::{
    api::core::v1::{PodSpec, Service},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mesh_core::{annotation, ports::PortSet};

use super::overrides::Annotations;
use crate::pod::ports;

/// Those default opaque ports that the pod's containers declare, in their order. Nothing when it declares none.
pub(super) fn default_of_pod(spec: &PodSpec, defaults: &str) -> Option<String> {
    let declared = ports::declared(spec).map(|(_, port)| port.container_port);
    among(declared, defaults)
}

/// Those default opaque ports that the Service leads to: by `targetPort` when it is a number, by `port` when there is no `targetPort`. A named target port
/// matches nothing, for the pods behind the name may differ.
pub(super) fn default_of_service(service: &Service, defaults: &str) -> Option<String> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let targets = ports.filter_map(|port| match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(target)) => Some(*target),
        Some(IntOrString::String(_)) => None,
    });
    among(targets, defaults)
}

/// The list for the proxy's environment: the annotation's with names resolved, or the default list. Nothing left means no variable.
pub(super) fn for_proxy(
    annotations: &Annotations,
    spec: &PodSpec,
    defaults: &str,
) -> Option<String> {
    let list = match annotations.get(annotation::OPAQUE_PORTS) {
        None => defaults.to_owned(),
        Some(list) => list
            .split(',')
            .map(str::trim)
            .flat_map(|item| match PortSet::parse_item(item) {
                Ok(_) => vec![item.to_owned()],
                Err(_) => ports::named(spec, item)
                    .iter()
                    .map(u16::to_string)
                    .collect(),
            })
            .collect::<Vec<_>>()
            .join(","),
    };
    (!list.is_empty()).then_some(list)
}

fn among(candidates: impl Iterator<Item = i32>, defaults: &str) -> Option<String> {
    let defaults: PortSet = ports::resolve_list(None, defaults);
    let used: Vec<String> = candidates
        .filter_map(ports::number)
        .filter(|port| defaults.contains(*port))
        .map(|port| port.to_string())
        .collect();
    (!used.is_empty()).then(|| used.join(","))
}
