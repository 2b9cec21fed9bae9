//! The input of every conversion.

use mesh_k8s::kinds::Resource;
use serde::de::DeserializeOwned;

/// A serialized object: the YAML of a file or the JSON of the API server.
pub trait Manifest {
    type Error;

    fn read<T: DeserializeOwned + Resource>(&self) -> Result<T, Self::Error>;
}
