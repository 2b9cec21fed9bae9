//! References of routes to their parents.

use std::sync::Arc;

use super::port_number;
use crate::model::{Name, ParentKind, ParentRef};

/// Converts a reference of the route `own` to a parent. A macro, as `backend_ref` and for the same
/// reason.
macro_rules! parent_ref {
    ($own:expr, $reference:expr) => {{
        let reference = &$reference;
        let kind = (reference.group.as_deref(), reference.kind.as_deref());
        let name = (reference.namespace.as_deref(), &*reference.name);
        let section = reference.section_name.as_deref();
        $crate::convert::parent::from_fields($own, kind, name, reference.port, section)
    }};
}

pub(super) use parent_ref;

/// The function of [`parent_ref`].
pub(super) fn from_fields(
    own: &Name,
    (group, kind): (Option<&str>, Option<&str>),
    (namespace, name): (Option<&str>, &str),
    port: Option<i32>,
    section: Option<&str>,
) -> ParentRef {
    ParentRef {
        kind: ParentKind::new(group, kind),
        name: Name::new(namespace.unwrap_or(&own.namespace), name),
        port: port.and_then(port_number),
        section: section.map(Arc::from),
    }
}
