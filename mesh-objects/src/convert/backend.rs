//! References to backends: of rules, and of the filters that mirror requests.

use std::sync::Arc;

use mesh_k8s::crd;

use super::port_number;
use crate::model::{BackendKind, BackendRef};

/// Converts a reference to a backend. A macro, because the types of references have the same
/// fields, but no trait for them.
macro_rules! backend_ref {
    ($reference:expr) => {{
        let reference = &$reference;
        $crate::convert::backend::from_fields(
            reference.group.as_deref(),
            reference.kind.as_deref(),
            reference.namespace.as_deref(),
            &reference.name,
            reference.port,
        )
    }};
}

pub(super) use backend_ref;

/// The function of [`backend_ref`].
pub(super) fn from_fields(
    group: Option<&str>,
    kind: Option<&str>,
    namespace: Option<&str>,
    name: &str,
    port: Option<i32>,
) -> BackendRef {
    let core = matches!(group, None | Some("" | "core"));
    let is_kind = |want: &str| kind.unwrap_or("Service").eq_ignore_ascii_case(want);
    BackendRef {
        kind: if core && is_kind("Service") {
            BackendKind::Service
        } else if group == Some(crd::GROUP) && is_kind("EgressNetwork") {
            BackendKind::EgressNetwork
        } else {
            BackendKind::Other
        },
        namespace: namespace.map(Arc::from),
        name: name.into(),
        port: port.and_then(port_number),
    }
}
