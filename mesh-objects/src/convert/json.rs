//! The objects of an API server, as JSON.

use mesh_k8s::kinds::Resource;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Manifest;

/// An object as JSON.
pub struct Json(pub Value);

impl Manifest for Json {
    type Error = String;

    fn read<T: DeserializeOwned + Resource>(&self) -> Result<T, String> {
        T::deserialize(&self.0).map_err(|error| field_and_problem::<T>(&self.0, &error))
    }
}

/// serde_norway names the field of an error, and serde_json does not. JSON is YAML.
fn field_and_problem<T: DeserializeOwned>(json: &Value, error: &serde_json::Error) -> String {
    match serde_norway::from_str::<T>(&json.to_string()) {
        Err(error) => without_position(&error),
        Ok(_) => error.to_string(),
    }
}

/// Formats an error without its trailing "at line 3 column 4", which refers to the document and not
/// to the file.
pub fn without_position(error: &serde_norway::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
