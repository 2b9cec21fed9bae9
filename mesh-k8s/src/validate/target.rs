//! References to other objects.

use super::Node;
use crate::crd::{LocalTargetRef, NamespacedTargetRef};

/// Reads a reference to an object in the namespace of the referring one.
pub(super) fn local(node: &Node<'_>) -> Option<LocalTargetRef> {
    node.read("write a reference with group, kind and name")
}

/// Reads a reference to an object in any namespace.
pub(super) fn namespaced(node: &Node<'_>) -> Option<NamespacedTargetRef> {
    node.read("write a reference with group, kind, name and, if it is another one, namespace")
}

/// Reports a reference to an object of an unexpected kind.
pub(super) fn wrong_kind(node: &Node<'_>, group: Option<&str>, kind: &str, fix: &str) {
    let group = match group {
        None | Some("" | "core") => "of the core group".to_owned(),
        Some(group) => format!("of group {:?}", super::shorten(group)),
    };
    let problem = format!(
        "{} {group} is not a target of this field",
        super::shorten(kind)
    );
    node.conflict(&problem, fix);
}
