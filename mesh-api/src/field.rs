//! Errors that name the field, and the three ways a field is read: required, optional, repeated.

use std::fmt;

/// A message that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidField {
    /// The path to the field, as in `protocol.detect.http_routes[2].rules[0].matches[0].path`.
    pub field: String,
    pub reason: Reason,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reason {
    #[error("is missing")]
    Missing,
    #[error("is of a kind that this version does not know")]
    UnknownKind,
    #[error("{value} is no {expected}")]
    NotA {
        expected: &'static str,
        value: String,
    },
}

impl InvalidField {
    fn new(field: &str, reason: Reason) -> Self {
        Self {
            field: field.to_owned(),
            reason,
        }
    }

    pub(crate) fn missing(field: &str) -> Self {
        Self::new(field, Reason::Missing)
    }

    pub(crate) fn unknown_kind(field: &str) -> Self {
        Self::new(field, Reason::UnknownKind)
    }

    pub(crate) fn not_a(expected: &'static str, field: &str, value: impl fmt::Debug) -> Self {
        let value = format!("{value:?}");
        Self::new(field, Reason::NotA { expected, value })
    }

    /// The same error seen from the message around it.
    fn inside(mut self, outer: &str) -> Self {
        self.field = if self.field.is_empty() {
            outer.to_owned()
        } else {
            format!("{outer}.{}", self.field)
        };
        self
    }
}

/// Names the field that a conversion was about.
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
    // Collected, it would live in the memory of the message, whose elements are larger and which
    // has room for more of them.
    let mut converted = Vec::with_capacity(values.size_hint().0);
    for (at, value) in values.enumerate() {
        let value = convert(value).map_err(|error| error.inside(&format!("{field}[{at}]")))?;
        converted.push(value);
    }
    Ok(converted)
}
