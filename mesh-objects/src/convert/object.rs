//! Conversion of an object of any kind, from YAML or JSON.

use std::sync::Arc;

use mesh_k8s::kinds;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::external_slice::external_object;
use super::{
    ConvertError, Json, Manifest, Metadata, authorization_policy, egress_network, endpoint_slice,
    external_workload, gateway_grpc_route, gateway_http_route, gateway_tcp_route,
    gateway_tls_route, listed, listed_pod, listed_profile, listed_service, mesh_tls_authentication,
    network_authentication, node, owned_object, pod, policy_http_route, rate_limit_policy,
    reported, server, server_authorization, service, service_profile,
};
use crate::model::{
    Kind, ListedKind, ListedObject, Object, ReportedKind, ReportedRoute, ReportedSpec,
};

/// Why an object is invalid: it cannot be deserialized as its kind, or not converted.
#[derive(Debug)]
pub enum ObjectError<E> {
    Read(E),
    Convert(ConvertError),
}

impl<E> From<ConvertError> for ObjectError<E> {
    fn from(error: ConvertError) -> Self {
        Self::Convert(error)
    }
}

pub fn object<M: Manifest>(kind: Kind, manifest: &M) -> Result<Object, ObjectError<M::Error>> {
    Ok(match kind {
        Kind::Pod => Object::Pod(pod(&read(manifest)?).into()),
        Kind::Node => Object::Node(node(&read(manifest)?).into()),
        Kind::ReplicaSet => {
            let set: kinds::ReplicaSet = read(manifest)?;
            Object::ReplicaSet(owned_object(&set.metadata).into())
        }
        Kind::Job => {
            let job: kinds::Job = read(manifest)?;
            Object::Job(owned_object(&job.metadata).into())
        }
        Kind::Service => Object::Service(service(&read(manifest)?).into()),
        Kind::EndpointSlice => Object::EndpointSlice(endpoint_slice(&read(manifest)?).into()),
        Kind::ExternalWorkload => {
            Object::ExternalWorkload(external_workload(&read(manifest)?)?.into())
        }
        Kind::Server => Object::Server(server(read(manifest)?)?.into()),
        Kind::ServerAuthorization => {
            Object::ServerAuthorization(server_authorization(&read(manifest)?)?.into())
        }
        Kind::AuthorizationPolicy => {
            Object::AuthorizationPolicy(authorization_policy(&read(manifest)?)?.into())
        }
        Kind::MeshTlsAuthentication => {
            Object::MeshTlsAuthentication(mesh_tls_authentication(&read(manifest)?)?.into())
        }
        Kind::NetworkAuthentication => {
            Object::NetworkAuthentication(network_authentication(&read(manifest)?)?.into())
        }
        Kind::RateLimitPolicy => {
            Object::RateLimitPolicy(rate_limit_policy(&read(manifest)?)?.into())
        }
        Kind::PolicyHttpRoute => {
            Object::PolicyHttpRoute(policy_http_route(&read(manifest)?)?.into())
        }
        Kind::GatewayHttpRoute => {
            Object::GatewayHttpRoute(gateway_http_route(&read(manifest)?)?.into())
        }
        Kind::GatewayGrpcRoute => {
            Object::GatewayGrpcRoute(gateway_grpc_route(&read(manifest)?)?.into())
        }
        Kind::ServiceProfile => Object::ServiceProfile(service_profile(&read(manifest)?)?.into()),
        Kind::GatewayTlsRoute => {
            Object::GatewayTlsRoute(gateway_tls_route(&read(manifest)?).into())
        }
        Kind::GatewayTcpRoute => {
            Object::GatewayTcpRoute(gateway_tcp_route(&read(manifest)?).into())
        }
        Kind::EgressNetwork => Object::EgressNetwork(egress_network(read(manifest)?)?.into()),
        Kind::Listed(kind) => {
            let object = match kind {
                ListedKind::Pod => listed_pod(&read(manifest)?),
                ListedKind::Service => listed_service(&read(manifest)?),
                ListedKind::ServiceProfile => listed_profile(&read(manifest)?),
                _ => {
                    let object: Metadata = read(manifest)?;
                    listed(kind, &object.metadata)
                }
            };
            Object::Listed(object.into())
        }
        Kind::Reported(kind) => {
            let object = reported::reported(kind, manifest, indexed).map_err(ObjectError::Read)?;
            Object::Reported(object.into())
        }
        Kind::External(kind) => {
            let object = external_object(kind, manifest).map_err(ObjectError::Read)?;
            Object::External(object.into())
        }
    })
}

/// Returns the record of an object in JSON; `None` if it is invalid, or not of a kind of the
/// destination and policy controllers.
pub fn valid(json: &Value) -> Option<Object> {
    let text = |field: &str| json[field].as_str().unwrap_or_default();
    let kind = Kind::find(text("apiVersion"), text("kind"))?;
    object(kind, &Json(json.clone())).ok()
}

/// Returns the record of an object in JSON that the metrics API lists.
///
/// # Errors
///
/// The description of a field that is invalid.
pub fn listed_object(kind: ListedKind, json: Value) -> Result<Arc<ListedObject>, String> {
    match indexed(Kind::Listed(kind), &Json(json))? {
        Object::Listed(object) => Ok(object),
        other => Err(format!("{other:?} is not listed")),
    }
}

/// Returns a route in JSON as its status describes it, even if it is invalid.
pub fn reported_route(kind: ReportedKind, json: &Value) -> Option<ReportedRoute> {
    let read = reported::reported(kind, &Json(json.clone()), indexed).ok()?;
    match read.spec {
        ReportedSpec::Route(route) => Some(route),
        _ => None,
    }
}

/// Converts an object with a status for the index, or returns why it has no effect.
fn indexed(kind: Kind, json: &Json) -> Result<Object, String> {
    object(kind, json).map_err(|error| match error {
        ObjectError::Read(problem) => problem,
        ObjectError::Convert(error) => error.to_string(),
    })
}

fn read<M: Manifest, T: DeserializeOwned + kinds::Resource>(
    manifest: &M,
) -> Result<T, ObjectError<M::Error>> {
    manifest.read().map_err(ObjectError::Read)
}
