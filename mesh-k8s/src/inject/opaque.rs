//! `config.linkerd.io/opaque-ports`: which of the default opaque ports an object really uses, and
//! what the proxy is told.

use k8s_openapi::{
    api::core::v1::{PodSpec, Service},
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};
use mesh_core::{annotation, ports::PortSet};

use super::overrides::{Annotations, Applied, Origin, warning};
use crate::pod::ports;

/// The default opaque ports, all of them, when the pod declares one. Its other ports stay what they
/// are without annotation.
pub(super) fn default_of_pod(spec: &PodSpec, defaults: &str) -> Option<String> {
    let defaults = ports::resolve_list(Some(spec), defaults);
    let mut declared =
        ports::declared(spec).filter_map(|(_, port)| ports::number(port.container_port));
    declared
        .any(|port| defaults.contains(port))
        .then(|| defaults.to_string())
}

/// Those default opaque ports that the Service leads to: by `targetPort` when it is a number. A
/// named target port may be another number on each pod, so the Service's own port counts, as it
/// does when there is no `targetPort`.
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

/// The list for the proxy's environment: the annotation's or the default, with names resolved.
/// Nothing left means no variable.
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

/// Refuses items that cannot be read, and warns of names that no port of the pod has. A namespace's
/// names are for whichever pods have them.
pub(super) fn check(
    annotations: &Annotations,
    spec: &PodSpec,
    origin: Origin<'_>,
    applied: &mut Applied,
) {
    let Some(list) = annotations.get(annotation::OPAQUE_PORTS) else {
        return;
    };
    if let Err(expected) = ports::check_list(list) {
        applied.refuse(origin, annotation::OPAQUE_PORTS, list, &expected);
        return;
    }
    if !origin.is_own(annotation::OPAQUE_PORTS) {
        return;
    }
    let unknown = items(list)
        .filter(|item| PortSet::parse_item(item).is_err() && ports::named(spec, item).is_empty());
    for name in unknown {
        let warning = format!(
            "{}: {}: {name:?} has no effect: no container has a TCP port of this name",
            origin.workload_name(),
            annotation::OPAQUE_PORTS
        );
        applied.warnings.push(warning);
    }
}

pub(super) fn service_warnings(
    namespace: &ObjectMeta,
    service: &Service,
    in_namespace: &str,
) -> Vec<String> {
    let list = |meta: &ObjectMeta| {
        let annotations = meta.annotations.as_ref()?;
        annotations.get(annotation::OPAQUE_PORTS).cloned()
    };
    let own = list(&service.metadata);
    let whose = match &own {
        Some(_) => {
            let name = service.metadata.name.as_deref().unwrap_or_default();
            format!("service {in_namespace}/{name}")
        }
        None => format!("namespace {in_namespace}"),
    };
    let unreadable = own
        .or_else(|| list(namespace))
        .and_then(|list| Some((ports::check_list(&list).err()?, list)));
    unreadable
        .map(|(expected, list)| warning(&whose, annotation::OPAQUE_PORTS, &list, &expected))
        .into_iter()
        .collect()
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}
