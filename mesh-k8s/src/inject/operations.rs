//! Collects the operations of a patch, in the order in which they are asked for: `add`, but for the
//! rare annotation that must go.

use std::collections::BTreeMap;

use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use serde::Serialize;
use serde_json::Value;

use super::InjectError;

#[derive(Default)]
pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    /// `what` names the value should it not be writable as JSON.
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

    /// Makes sure that a list is there to be added to.
    pub(super) fn ensure_list(&mut self, path: &[&str], exists: bool) {
        if !exists {
            self.push(path, Value::Array(Vec::new()));
        }
    }

    /// Adds entries to a map of the object's metadata, making the map first where there is none.
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
