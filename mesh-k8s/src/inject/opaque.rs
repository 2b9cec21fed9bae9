//! `config.linkerd.io/opaque-ports`: which of the default opaque ports an object really uses, and what the proxy is told.

use k8s_openapi::{
    api::core::v1::{PodSpec, Service},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mesh_core::{annotation, ports::PortSet};

use super::overrides::Annotations;
use crate::pod::ports;

/// The default opaque ports, all of them, when the pod declares one. Its other ports stay what they are without annotation.
pub(super) fn default_of_pod(spec: &PodSpec, defaults: &str) -> Option<String> {
    let defaults = ports::resolve_list(Some(spec), defaults);
    let mut declared =
        ports::declared(spec).filter_map(|(_, port)| ports::number(port.container_port));
    declared
        .any(|port| defaults.contains(port))
        .then(|| defaults.to_string())
}

/// Those default opaque ports that the Service leads to: by `targetPort` when it is a number. A named target port may be another number on each pod, so the
/// Service's own port counts, as it does when there is no `targetPort`.
pub(super) fn default_of_service(service: &Service, defaults: &str) -> Option<String> {
    let defaults: PortSet = ports::resolve_list(None, defaults);
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let mut used: Vec<u16> = Vec::new();
    for port in ports {
        let number = match &port.target_port {
            Some(IntOrString::Int(target)) if *target != 0 => *target,
            None | Some(IntOrString::Int(_) | IntOrString::String(_)) => port.port,
        };
        if let Some(number) = ports::number(number)
            && defaults.contains(number)
            && !used.contains(&number)
        {
            used.push(number);
        }
    }
    let used: Vec<String> = used.iter().map(u16::to_string).collect();
    (!used.is_empty()).then(|| used.join(","))
}

/// The list for the proxy's environment: the annotation's or the default, with names resolved. Nothing left means no variable.
pub(super) fn for_proxy(
    annotations: &Annotations,
    spec: &PodSpec,
    defaults: &str,
) -> Option<String> {
    let list = match annotations.get(annotation::OPAQUE_PORTS) {
        None => defaults,
        Some(list) => list,
    };
    let resolved: Vec<String> = items(list)
        .flat_map(|item| match PortSet::parse_item(item) {
            Ok(_) => vec![item.to_owned()],
            Err(_) => ports::named(spec, item)
                .iter()
                .map(u16::to_string)
                .collect(),
        })
        .collect();
    (!resolved.is_empty()).then(|| resolved.join(","))
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}
