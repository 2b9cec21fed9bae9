//! A slice as an object of the API server.

use std::sync::Arc;

use kube::api::ApiResource;
use mesh_k8s::kinds::EndpointSlice;
use mesh_objects::model::{EndpointPort, ExternalEndpoint, ExternalSlice, Name};
use serde_json::{Value, json};

pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<EndpointSlice>(&())
}

/// Returns the object. `resource_version` is the version that it replaces.
pub(super) fn manifest(
    name: &Name,
    slice: &ExternalSlice,
    resource_version: Option<&Arc<str>>,
) -> Value {
    let endpoints = slice.endpoints.iter();
    let endpoints = endpoints.map(|it| endpoint(&name.namespace, it));
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": &*name.name,
            "namespace": &*name.namespace,
            "resourceVersion": resource_version.map(|it| &**it),
            "labels": &slice.labels,
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Service",
                "name": &*slice.service,
                "uid": &*slice.service_uid,
                // Without blockOwnerDeletion, which some clusters allow only with more rights.
                "controller": true,
            }],
        },
        "addressType": slice.family.as_str(),
        "ports": slice.ports.iter().map(port).collect::<Vec<_>>(),
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

fn port(port: &EndpointPort) -> Value {
    json!({
        // The name of a port without one is empty.
        "name": port.name.as_deref().unwrap_or_default(),
        "protocol": &*port.protocol,
        "port": port.number,
        "appProtocol": port.app_protocol.as_deref(),
    })
}

fn endpoint(namespace: &str, endpoint: &ExternalEndpoint) -> Value {
    json!({
        "addresses": &endpoint.addresses,
        "conditions": {
            "ready": endpoint.ready,
            "serving": endpoint.ready,
            "terminating": false,
        },
        "hostname": endpoint.hostname.as_deref(),
        "zone": endpoint.zone.as_deref(),
        "targetRef": {
            "kind": "ExternalWorkload",
            "namespace": namespace,
            "name": &*endpoint.workload,
            "uid": &*endpoint.workload_uid,
        },
    })
}
