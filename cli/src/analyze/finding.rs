//! A problem of an object.

use serde::Serialize;

use super::objects::Object;

/// A problem of one object, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) kind: String,
    /// Empty for an object of the cluster.
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The path of the field; empty for the whole object.
    pub(crate) field: String,
    /// A name for the kind of problem, for scripts.
    pub(crate) code: &'static str,
    pub(crate) problem: String,
    pub(crate) fix: String,
}

impl Finding {
    pub(super) fn new(
        object: &Object,
        field: impl Into<String>,
        code: &'static str,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            group: object.group.clone(),
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            field: field.into(),
            code,
            problem: problem.into(),
            fix: fix.into(),
        }
    }

    /// Returns the object in the notation of kubectl.
    pub(crate) fn object(&self) -> String {
        if self.namespace.is_empty() {
            return format!("{} {}", self.kind, self.name);
        }
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }

    pub(super) fn order(&self) -> (&str, &str, &str, &str, &str) {
        (
            &self.namespace,
            &self.kind,
            &self.name,
            &self.field,
            self.code,
        )
    }
}
