//! Services, ExternalWorkloads and EndpointSlices, for the controller that writes EndpointSlices of
//! ExternalWorkloads.

use std::net::IpAddr;
use std::sync::Arc;

use kube::core::DynamicObject;
use mesh_k8s::crd;
use mesh_k8s::kinds::{EndpointSlice, IntOrString, ObjectMeta, Service, core, discovery};

use super::pod::ZONE_LABEL;
use super::service::SERVICE_LABEL;
use super::{Manifest, name, port_number, shared};
use crate::model::{
    AddressFamily, EndpointPort, ExternalEndpoint, ExternalKind, ExternalObject, ExternalSlice,
    ExternalSpec, Labels, NamedPort, SelectedWorkload, SelectingService, TargetPort, TargetedPort,
    WrittenSlice,
};

/// The label of an EndpointSlice with its controller.
pub const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";

/// The controller of ExternalWorkloads' EndpointSlices in that label, as in Linkerd.
pub const EXTERNAL_MANAGER: &str = "linkerd-external-workloads-controller";

/// Kubernetes runs its own Services there, and Linkerd's controller leaves them alone.
const EXCLUDED_NAMESPACE: &str = "kube-system";

pub(super) fn external_object<M: Manifest>(
    kind: ExternalKind,
    manifest: &M,
) -> Result<ExternalObject, M::Error> {
    let (name, spec) = match kind {
        ExternalKind::Service => {
            let service: Service = manifest.read()?;
            let spec = selecting_service(&service).map(Arc::new);
            (name(&service.metadata), spec.map(ExternalSpec::Service))
        }
        ExternalKind::Workload => {
            let workload: crd::ExternalWorkload = manifest.read()?;
            let is_ready = is_ready(&manifest.read()?);
            let spec = selected_workload(&workload, is_ready);
            let spec = Some(ExternalSpec::Workload(spec.into()));
            (name(&workload.metadata), spec)
        }
        ExternalKind::Slice => {
            let slice: EndpointSlice = manifest.read()?;
            let spec = written_slice(&slice).map(Arc::new);
            (name(&slice.metadata), spec.map(ExternalSpec::Slice))
        }
    };
    Ok(ExternalObject { kind, name, spec })
}

/// Returns a Service with a selector.
fn selecting_service(service: &Service) -> Option<SelectingService> {
    let meta = &service.metadata;
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.clone().filter(|labels| !labels.is_empty())?;
    if spec.type_.as_deref() == Some("ExternalName")
        || meta.namespace.as_deref() == Some(EXCLUDED_NAMESPACE)
    {
        return None;
    }
    Some(SelectingService {
        uid: text(&meta.uid),
        labels: labels(meta),
        selector,
        headless: spec.cluster_ip.as_deref() == Some("None"),
        families: families(spec),
        ports: spec.ports.iter().flatten().filter_map(targeted).collect(),
    })
}

/// Returns the families of a Service. API servers have set them since Kubernetes 1.20.
fn families(spec: &core::ServiceSpec) -> Vec<AddressFamily> {
    let named = spec.ip_families.iter().flatten();
    let named: Vec<_> = named.filter_map(|it| AddressFamily::find(it)).collect();
    if !named.is_empty() {
        return named;
    }
    let address = spec.cluster_ip.as_deref().and_then(|ip| ip.parse().ok());
    match address {
        Some(IpAddr::V6(_)) => vec![AddressFamily::V6],
        Some(IpAddr::V4(_)) | None => vec![AddressFamily::V4],
    }
}

fn targeted(port: &core::ServicePort) -> Option<TargetedPort> {
    let target = match &port.target_port {
        Some(IntOrString::String(name)) => TargetPort::Name(name.as_str().into()),
        Some(IntOrString::Int(number)) if *number != 0 => TargetPort::Number(port_number(*number)?),
        // The API server fills it in.
        Some(IntOrString::Int(_)) | None => TargetPort::Number(port_number(port.port)?),
    };
    Some(TargetedPort {
        name: shared(&port.name),
        protocol: protocol(&port.protocol),
        app_protocol: shared(&port.app_protocol),
        target,
    })
}

fn selected_workload(workload: &crd::ExternalWorkload, is_ready: bool) -> SelectedWorkload {
    let meta = &workload.metadata;
    let ips = workload.spec.workload_ips.iter().flatten();
    let ports = workload.spec.ports.iter().flatten();
    let labels = labels(meta);
    SelectedWorkload {
        uid: text(&meta.uid),
        ips: ips.filter_map(|it| it.ip.parse().ok()).collect(),
        ports: ports
            .filter_map(|port| {
                Some(NamedPort {
                    name: shared(&port.name)?,
                    protocol: protocol(&port.protocol),
                    number: port.port,
                })
            })
            .collect(),
        ready: is_ready,
        zone: labels.get(ZONE_LABEL).map(|zone| zone.as_str().into()),
        labels,
    }
}

/// Returns whether a condition says that the workload is ready. A status that is invalid does not.
fn is_ready(workload: &DynamicObject) -> bool {
    let conditions = workload.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Returns a slice of this controller.
fn written_slice(slice: &EndpointSlice) -> Option<WrittenSlice> {
    let labels = labels(&slice.metadata);
    (labels.get(MANAGED_BY_LABEL)? == EXTERNAL_MANAGER).then(|| WrittenSlice {
        resource_version: slice.metadata.resource_version.as_deref().map(Arc::from),
        content: content(slice, labels),
    })
}

fn content(slice: &EndpointSlice, labels: Labels) -> Option<ExternalSlice> {
    let owners = slice.metadata.owner_references.iter().flatten();
    let owner = owners.into_iter().find(|owner| owner.kind == "Service")?;
    let ports = slice.ports.iter().flatten();
    let endpoints = slice.endpoints.iter();
    Some(ExternalSlice {
        service: labels.get(SERVICE_LABEL)?.as_str().into(),
        service_uid: owner.uid.as_str().into(),
        family: AddressFamily::find(&slice.address_type)?,
        ports: ports.map(endpoint_port).collect::<Option<_>>()?,
        endpoints: endpoints.map(endpoint).collect::<Option<_>>()?,
        labels,
    })
}

fn endpoint_port(port: &discovery::EndpointPort) -> Option<EndpointPort> {
    Some(EndpointPort {
        name: shared(&port.name),
        protocol: protocol(&port.protocol),
        number: port.port.and_then(port_number)?,
        app_protocol: shared(&port.app_protocol),
    })
}

fn endpoint(endpoint: &discovery::Endpoint) -> Option<ExternalEndpoint> {
    let target = endpoint.target_ref.as_ref()?;
    let addresses = endpoint.addresses.iter();
    let conditions = endpoint.conditions.as_ref()?;
    Some(ExternalEndpoint {
        workload: text(&target.name),
        workload_uid: text(&target.uid),
        addresses: addresses
            .map(|address| address.parse().ok())
            .collect::<Option<_>>()?,
        ready: conditions.ready?,
        hostname: shared(&endpoint.hostname),
        zone: shared(&endpoint.zone),
    })
}

fn labels(meta: &ObjectMeta) -> Labels {
    meta.labels.clone().unwrap_or_default()
}

fn text(text: &Option<String>) -> Arc<str> {
    text.as_deref().unwrap_or_default().into()
}

/// Returns the protocol of a port; TCP is the default.
fn protocol(written: &Option<String>) -> Arc<str> {
    let written = written.as_deref().filter(|it| !it.is_empty());
    written.unwrap_or("TCP").into()
}
