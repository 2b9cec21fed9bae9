//! Conversion of Kubernetes objects to the [model](crate::model).
//!
//! Every source uses these functions, so that an object has the same meaning wherever it was read.
//! An invalid field without which the object has no meaning is an error: the source reports it and
//! keeps the last valid version. An invalid field with a default (most annotations) gets the
//! default and a warning, as in Linkerd.

use std::fmt;
use std::sync::Arc;

use mesh_k8s::invalid::{self, Invalid};
use mesh_k8s::kinds::{ObjectMeta, OwnerReference};
use mesh_k8s::pod::meta_annotation as annotation;

use self::connection_route::{gateway_tcp_route, gateway_tls_route};
use self::egress_network::egress_network;
use self::external_workload::external_workload;
use self::listed::{Metadata, listed, listed_pod, listed_profile, listed_service};
use self::pod::{node, owned_object};
use self::policy::{authorization_policy, mesh_tls_authentication, network_authentication, server};
use self::profile::service_profile;
use self::rate_limit::rate_limit_policy;
use self::route::{gateway_grpc_route, gateway_http_route, policy_http_route};
use self::server_authorization::server_authorization;
use self::service::{endpoint_slice, service};
use crate::model::{Name, OwnerRef};

mod annotations;
mod backend;
mod connection_route;
mod egress_network;
mod external_slice;
mod external_workload;
mod filter;
mod json;
mod listed;
mod manifest;
mod object;
mod parent;
mod pod;
mod policy;
mod profile;
mod rate_limit;
mod reported;
mod route;
mod server_authorization;
mod server_route;
mod service;

pub use self::{
    external_slice::{EXTERNAL_MANAGER, MANAGED_BY_LABEL},
    json::{Json, without_position},
    manifest::Manifest,
    object::{ObjectError, listed_object, object, reported_route, valid},
    pod::{default_policy, pod},
    service::SERVICE_LABEL,
};

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConvertError {
    pub field: String,
    pub problem: String,
}

impl ConvertError {
    fn new(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self {
            field: field.into(),
            problem: problem.to_string(),
        }
    }

    fn of(invalid: Invalid) -> Self {
        Self::new(invalid.field, invalid.problem)
    }

    /// Returns the problems of an object as one.
    fn all(problems: &[Invalid]) -> Self {
        let text = invalid::summary(problems);
        let (field, problem) = text.split_once(": ").unwrap_or(("spec", &text));
        Self::new(field, problem)
    }

    /// Prefixes the path with the containing field.
    fn inside(mut self, outer: &str) -> Self {
        self.field = format!("{outer}.{}", self.field);
        self
    }
}

/// Converts a list; the error names the position of the invalid item.
fn convert_all<P, T>(
    field: &str,
    values: &Option<Vec<P>>,
    convert: impl Fn(&P) -> Result<T, ConvertError>,
) -> Result<Vec<T>, ConvertError> {
    let convert = |(at, value)| {
        convert(value).map_err(|error: ConvertError| error.inside(&format!("{field}[{at}]")))
    };
    values.iter().flatten().enumerate().map(convert).collect()
}

pub fn name(meta: &ObjectMeta) -> Name {
    Name::new(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}

fn created(meta: &ObjectMeta) -> Option<i64> {
    meta.creation_timestamp
        .as_ref()
        .map(|time| time.0.as_second())
}

/// Returns the owner; `None` if there are several.
fn owner(meta: &ObjectMeta) -> Option<OwnerRef> {
    match meta.owner_references.as_deref() {
        Some([OwnerReference { kind, name, .. }]) => Some(OwnerRef {
            kind: kind.to_ascii_lowercase().into(),
            name: name.as_str().into(),
        }),
        _ => None,
    }
}

fn shared(text: &Option<String>) -> Option<Arc<str>> {
    text.as_deref()
        .filter(|text| !text.is_empty())
        .map(Arc::from)
}

/// Converts an `i32` of the Kubernetes API to a port number.
fn port_number(port: i32) -> Option<u16> {
    mesh_k8s::pod::ports::port_number(port)
}
