//! References to backends: of rules, and of the filters that mirror requests.

use std::sync::Arc;

use mesh_k8s::crd;

use super::port_number;
use crate::model::{BackendKind, BackendRef};

pub(super) fn backend_ref(
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
