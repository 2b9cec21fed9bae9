//! A field of an object that is invalid: what conversions and validations of objects return.

use std::fmt;

/// Why a field is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The path of the field, such as `spec.routes[1].timeout`.
    pub field: String,
    /// The problem with its value, and the accepted values.
    pub problem: String,
}

/// The number of problems of one object that are reported, so that a generated object with the same
/// mistake everywhere does not fill a log.
pub const MAX_PROBLEMS: usize = 20;

/// The number of characters of a value that a problem shows.
const MAX_SHOWN: usize = 64;

impl Invalid {
    /// Returns a problem of a field.
    pub fn new(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self {
            field: field.into(),
            problem: problem.to_string(),
        }
    }
}

/// Returns the problems as one text of a line.
pub fn summary(problems: &[Invalid]) -> String {
    let texts: Vec<String> = problems.iter().map(Invalid::to_string).collect();
    texts.join("; ")
}

/// Returns a value in quotes, shortened.
pub(crate) fn shown(value: &str) -> String {
    match value.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}
