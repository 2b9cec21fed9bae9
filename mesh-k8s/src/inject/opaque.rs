//! `config.linkerd.io/opaque-ports`: the annotation of pods and Services, and the variable of the
//! proxy.

use k8s_openapi::api::core::v1::{PodSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mesh_core::annotation;
use mesh_core::ports::PortSet;
use mesh_core::units::list_items;

use super::overrides::{AnnotationOrigin, Annotations, OverrideReport, warning};
use crate::pod::{meta_annotation, ports};

/// Returns all default opaque ports if the pod declares one of them, so that the annotation equals
/// the default for its other ports.
pub(super) fn default_of_pod(spec: &PodSpec, defaults: &str) -> Option<String> {
    let defaults = ports::resolve_list(Some(spec), defaults);
    let mut declared =
        ports::declared(spec).filter_map(|(_, port)| ports::port_number(port.container_port));
    declared
        .any(|port| defaults.contains(port))
        .then(|| defaults.to_string())
}

/// Returns the default opaque ports that the Service forwards to: its `targetPort` if that is a
/// number, otherwise its own port, since a named target port may have a different number on each
/// pod.
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
        if let Some(number) = ports::port_number(number)
            && defaults.contains(number)
            && !used.contains(&number)
        {
            used.push(number);
        }
    }
    let used: Vec<String> = used.iter().map(u16::to_string).collect();
    (!used.is_empty()).then(|| used.join(","))
}

/// Returns the list for the proxy's environment: the annotation or the default, with names
/// resolved.
pub(super) fn for_proxy(
    annotations: &Annotations,
    spec: &PodSpec,
    defaults: &str,
) -> Option<String> {
    let list = annotations
        .get(annotation::OPAQUE_PORTS)
        .map_or(defaults, String::as_str);
    let resolved: Vec<String> = list_items(list)
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

/// Rejects invalid items, and warns about names of the pod's own annotation that none of its ports
/// has. Names in the annotation of a namespace may apply to some of its pods only.
pub(super) fn check(
    annotations: &Annotations,
    spec: &PodSpec,
    origin: AnnotationOrigin<'_>,
    report: &mut OverrideReport,
) {
    let Some(list) = annotations.get(annotation::OPAQUE_PORTS) else {
        return;
    };
    if let Err(expected) = ports::check_list(list) {
        report.reject(origin, annotation::OPAQUE_PORTS, list, &expected);
        return;
    }
    if !origin.is_own(annotation::OPAQUE_PORTS) {
        return;
    }
    let unknown = list_items(list)
        .filter(|item| PortSet::parse_item(item).is_err() && ports::named(spec, item).is_empty());
    for name in unknown {
        let warning = format!(
            "{}: {}: {name:?} has no effect: no container has a TCP port of this name",
            origin.workload_name(),
            annotation::OPAQUE_PORTS
        );
        report.warnings.push(warning);
    }
}

/// Returns a warning for each annotation of a Service that is partly invalid. The valid items stay
/// in effect and the Service is admitted.
pub fn service_warnings(
    namespace: &ObjectMeta,
    service: &Service,
    in_namespace: &str,
) -> Vec<String> {
    let list = |meta| meta_annotation(meta, annotation::OPAQUE_PORTS);
    let own = list(&service.metadata);
    let holder = match &own {
        Some(_) => {
            let name = service.metadata.name.as_deref().unwrap_or_default();
            format!("service {in_namespace}/{name}")
        }
        None => format!("namespace {in_namespace}"),
    };
    let invalid_value = own
        .or_else(|| list(namespace))
        .and_then(|list| Some((ports::check_list(list).err()?, list)));
    invalid_value
        .map(|(expected, list)| warning(&holder, annotation::OPAQUE_PORTS, list, &expected))
        .into_iter()
        .collect()
}
