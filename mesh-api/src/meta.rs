//! References to cluster objects.

use std::collections::HashMap;

use mesh_core::meta::{Meta, Resource};

use crate::field::InvalidField;
use crate::proto::meta as wire;
use crate::proto::meta::metadata::Kind;
use crate::value::optional_port;

/// Converts a reference that was received.
///
/// # Errors
///
/// The kind is missing or the port invalid.
pub fn meta(metadata: wire::Metadata) -> Result<Meta, InvalidField> {
    match metadata.kind {
        Some(Kind::Default(name)) => Ok(Meta::Default(name.into())),
        // Any text may be empty: Linkerd sends a reference without a name where no ServiceProfile
        // exists.
        Some(Kind::Resource(resource)) => Ok(Meta::Resource(Resource {
            group: resource.group.into(),
            kind: resource.kind.into(),
            namespace: resource.namespace.into(),
            name: resource.name.into(),
            section: resource.section.into(),
            port: optional_port("resource.port", resource.port)?,
        })),
        None => Err(InvalidField::missing("kind")),
    }
}

/// Converts a reference to a message.
pub fn to_proto(meta: &Meta) -> wire::Metadata {
    let kind = match meta {
        Meta::Default(name) => Kind::Default(name.to_string()),
        Meta::Resource(resource) => Kind::Resource(wire::Resource {
            group: resource.group.to_string(),
            kind: resource.kind.to_string(),
            name: resource.name.to_string(),
            namespace: resource.namespace.to_string(),
            section: resource.section.to_string(),
            port: resource.port.unwrap_or_default().into(),
        }),
    };
    wire::Metadata { kind: Some(kind) }
}

/// Converts the labels `group`, `kind` and `name`, the older form of a reference.
pub(crate) fn from_labels(
    field: &str,
    labels: &HashMap<String, String>,
) -> Result<Meta, InvalidField> {
    let label = |key: &str| {
        labels
            .get(key)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| InvalidField::missing(&format!("{field}[{key:?}]")))
    };
    let (kind, name) = (label("kind")?, label("name")?);
    if kind == "default" {
        return Ok(Meta::new_default(name));
    }
    let group = labels.get("group").map_or("", String::as_str);
    Ok(Meta::Resource(Resource::new(
        group,
        kind,
        "",
        name.as_str(),
    )))
}

pub(crate) fn to_labels(meta: &Meta) -> HashMap<String, String> {
    [
        ("group", meta.group()),
        ("kind", meta.kind()),
        ("name", meta.name()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}
