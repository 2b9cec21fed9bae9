//! The texts of a review beside its object, with the lengths that Kubernetes allows.
//!
//! Responses, logs and metrics repeat them. [`super`] names a function for each field.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};

/// Reads a text of a field.
struct Bounded {
    field: &'static str,
    /// The most bytes.
    max: usize,
}

/// Reads a text or null.
struct Optional(Bounded);

/// Defines a function that reads a field of a review.
macro_rules! texts {
    ($($name:ident: $field:literal, $max:literal;)*) => {
        $(pub(super) fn $name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
            from.deserialize_str(Bounded { field: $field, max: $max })
        })*
    };
}

texts! {
    // Longer than all versions, so that the error can show it.
    api_version: "apiVersion", 64;
    // A UUID has 36 characters.
    uid: "request.uid", 64;
    // `CONNECT`.
    operation: "request.operation", 16;
    // A DNS subdomain.
    group: "request.kind.group", 253;
    // A DNS label.
    kind: "kind", 63;
}

/// A DNS label, or null.
pub(super) fn namespace<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let field = "request.namespace";
    from.deserialize_option(Optional(Bounded { field, max: 63 }))
}

impl Visitor<'_> for Bounded {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {} bytes as {}", self.max, self.field)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        if text.len() <= self.max {
            Ok(text.to_owned())
        } else {
            Err(E::invalid_length(text.len(), &self))
        }
    }
}

impl<'de> Visitor<'de> for Optional {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Option<String>, D::Error> {
        from.deserialize_str(self.0).map(Some)
    }
}
