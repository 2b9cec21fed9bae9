//! JSON patches (RFC 6902), with `add` operations, and `remove` for annotations.
//!
//! A patch is its text, and each value is serialised into it once: the webhook sends the text, and
//! making it is most of the cost of a review.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use serde::Serialize;
use serde_json::Value;

use super::InjectError;

/// Operations that change an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// A JSON list, or an empty text without operations.
    text: String,
}

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text is not a patch.
    #[error("the patch is not a list of operations")]
    Parse(#[source] serde_json::Error),
    /// The object has no place for a value.
    #[error("the object cannot be changed as the patch says")]
    Apply(#[source] json_patch::PatchError),
}

#[derive(Default)]
pub(super) struct Operations(String);

/// Fits the patch of most pods.
const CAPACITY: usize = 12 * 1024;

impl Patch {
    /// Returns whether it has no operations.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        if self.is_empty() { "[]" } else { &self.text }
    }

    /// Applies the operations to an object.
    ///
    /// # Errors
    ///
    /// The object lacks the parent of an added value, or a removed one.
    pub fn apply(&self, object: &mut Value) -> Result<(), ApplyError> {
        let operations: json_patch::Patch =
            serde_json::from_str(self.as_str()).map_err(ApplyError::Parse)?;
        json_patch::patch(object, &operations).map_err(ApplyError::Apply)
    }
}

impl Operations {
    /// Adds a value. `what` names it in the error if it cannot be serialized.
    pub(super) fn add(
        &mut self,
        path: &[&str],
        what: &'static str,
        value: &impl Serialize,
    ) -> Result<(), InjectError> {
        let value = serde_json::to_string(value)
            .map_err(|source| InjectError::Serialize { what, source })?;
        self.push_add(path, &value);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &[&str]) {
        self.begin("remove", path);
        self.0.push('}');
    }

    /// Adds an empty list if the object has none.
    pub(super) fn ensure_list(&mut self, path: &[&str], exists: bool) {
        if !exists {
            self.push_add(path, "[]");
        }
    }

    /// Adds entries to a map of the object's metadata, and first the map itself if it is missing.
    pub(super) fn metadata_entries(
        &mut self,
        map: &str,
        present: Option<&BTreeMap<String, String>>,
        entries: BTreeMap<String, String>,
    ) {
        if present.is_none() {
            self.push_add(&["metadata", map], "{}");
        }
        for (key, value) in entries {
            self.push_add(&["metadata", map, &key], &quoted(&value));
        }
    }

    pub(super) fn finish(mut self) -> Patch {
        if !self.0.is_empty() {
            self.0.push(']');
        }
        Patch { text: self.0 }
    }

    /// Appends an operation with a value, which is JSON.
    fn push_add(&mut self, path: &[&str], value: &str) {
        self.begin("add", path);
        self.0.push_str(",\"value\":");
        self.0.push_str(value);
        self.0.push('}');
    }

    /// Begins an operation, which lacks its closing brace.
    fn begin(&mut self, operation: &str, path: &[&str]) {
        let is_first = self.0.is_empty();
        if is_first {
            self.0.reserve(CAPACITY);
        }
        self.0.push(if is_first { '[' } else { ',' });
        self.0.push_str("{\"op\":\"");
        self.0.push_str(operation);
        self.0.push_str("\",\"path\":");
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0.push_str(&quoted(path.as_str()));
    }
}

/// Returns a text as a JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patch_adds_and_removes_values_with_any_characters() {
        let mut operations = Operations::default();
        let (odd_key, odd_value) = ("a/b~c\"\\", "line\n\"end\"");
        let entries = BTreeMap::from([(odd_key.to_owned(), odd_value.to_owned())]);
        operations.remove(&["metadata", "annotations", "x/y"]);
        operations.metadata_entries("annotations", Some(&BTreeMap::new()), entries);
        operations.metadata_entries("labels", None, BTreeMap::new());
        operations.ensure_list(&["list"], false);
        operations.ensure_list(&["other"], true);
        operations.add(&["list", "-"], "number", &1).unwrap();
        let patch = operations.finish();
        let mut object = json!({"metadata": {"annotations": {"x/y": "1"}}});
        patch.apply(&mut object).unwrap();
        let expected = json!({
            "metadata": {"annotations": {odd_key: odd_value}, "labels": {}},
            "list": [1],
        });
        assert_eq!(object, expected);
        assert!(matches!(
            patch.apply(&mut object),
            Err(ApplyError::Apply(_))
        ));
    }

    #[test]
    fn patch_without_operations_is_an_empty_list() {
        let patch = Operations::default().finish();
        assert!(patch.is_empty());
        assert_eq!(patch.as_str(), "[]");
        let mut object = json!({});
        patch.apply(&mut object).unwrap();
        assert_eq!(object, json!({}));
    }
}
