//! A builder of JSON patches with `add` operations, and `remove` for annotations.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use serde::Serialize;
use serde_json::Value;

use super::InjectError;

#[derive(Default)]
pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    /// Adds a value. `what` names it in the error if it cannot be serialized.
    pub(super) fn add(
        &mut self,
        path: &[&str],
        what: &'static str,
        value: &impl Serialize,
    ) -> Result<(), InjectError> {
        let value = serde_json::to_value(value)
            .map_err(|source| InjectError::Serialize { what, source })?;
        self.push(path, value);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &[&str]) {
        self.0.push(PatchOperation::Remove(RemoveOperation {
            path: PointerBuf::from_tokens(path.iter().copied()),
        }));
    }

    /// Adds an empty list if the object has none.
    pub(super) fn ensure_list(&mut self, path: &[&str], exists: bool) {
        if !exists {
            self.push(path, Value::Array(Vec::new()));
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
            self.push(&["metadata", map], Value::Object(serde_json::Map::new()));
        }
        for (key, value) in entries {
            self.push(&["metadata", map, &key], Value::String(value));
        }
    }

    pub(super) fn finish(self) -> Patch {
        Patch(self.0)
    }

    fn push(&mut self, path: &[&str], value: Value) {
        self.0.push(PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(path.iter().copied()),
            value,
        }));
    }
}
