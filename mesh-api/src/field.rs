//! Errors that name the invalid field, and the conversion of required, optional and repeated
//! fields.

use std::fmt;

/// An invalid field of a message.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidField {
    /// The path to the field, as in `protocol.detect.http_routes[2].rules[0].matches[0].path`.
    pub field: String,
    /// Why the field is invalid.
    pub reason: InvalidFieldKind,
}

/// Why a field is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidFieldKind {
    /// A required field is missing.
    #[error("is missing")]
    Missing,
    /// The kind of a `oneof` is unknown or missing.
    #[error("has a kind that this version does not support")]
    UnknownKind,
    /// The value is invalid.
    #[error("{value} is not a valid {expected}")]
    NotA {
        /// The expected value.
        expected: &'static str,
        /// The value, formatted for debugging.
        value: String,
    },
}

impl InvalidField {
    fn new(field: &str, reason: InvalidFieldKind) -> Self {
        Self {
            field: field.to_owned(),
            reason,
        }
    }

    pub(crate) fn missing(field: &str) -> Self {
        Self::new(field, InvalidFieldKind::Missing)
    }

    pub(crate) fn unknown_kind(field: &str) -> Self {
        Self::new(field, InvalidFieldKind::UnknownKind)
    }

    pub(crate) fn not_a(expected: &'static str, field: &str, value: impl fmt::Debug) -> Self {
        let value = format!("{value:?}");
        Self::new(field, InvalidFieldKind::NotA { expected, value })
    }

    /// Prepends the field of the enclosing message to the path.
    fn inside(mut self, outer: &str) -> Self {
        self.field = if self.field.is_empty() {
            outer.to_owned()
        } else {
            format!("{outer}.{}", self.field)
        };
        self
    }
}

/// Adds the field to the error of a conversion.
pub(crate) trait FieldContext {
    fn inside(self, field: &str) -> Self;
}

impl<T> FieldContext for Result<T, InvalidField> {
    fn inside(self, field: &str) -> Self {
        self.map_err(|error| error.inside(field))
    }
}

pub(crate) fn required<P, T>(
    field: &str,
    value: Option<P>,
    convert: impl FnOnce(P) -> Result<T, InvalidField>,
) -> Result<T, InvalidField> {
    let value = value.ok_or_else(|| InvalidField::missing(field))?;
    convert(value).inside(field)
}

pub(crate) fn optional<P, T>(
    field: &str,
    value: Option<P>,
    convert: impl FnOnce(P) -> Result<T, InvalidField>,
) -> Result<Option<T>, InvalidField> {
    value.map(|value| convert(value).inside(field)).transpose()
}

pub(crate) fn each<P, T>(
    field: &str,
    values: impl IntoIterator<Item = P>,
    convert: impl Fn(P) -> Result<T, InvalidField>,
) -> Result<Vec<T>, InvalidField> {
    let values = values.into_iter();
    // Not collected in place, because then it would keep the memory of the message's elements,
    // which are larger and more.
    let mut converted = Vec::with_capacity(values.size_hint().0);
    for (at, value) in values.enumerate() {
        let value = convert(value).map_err(|error| error.inside(&format!("{field}[{at}]")))?;
        converted.push(value);
    }
    Ok(converted)
}
