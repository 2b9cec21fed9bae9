//! The ConfigMaps and Secrets that volumes and environments take data from.

use std::collections::BTreeMap;

use crate::manifest::{Manifests, ObjectKey};

/// The ConfigMaps and Secrets of a namespace.
pub struct DataSources<'a> {
    manifests: &'a Manifests,
    namespace: &'a str,
}

impl<'a> DataSources<'a> {
    pub fn new(manifests: &'a Manifests, namespace: &'a str) -> Self {
        Self {
            manifests,
            namespace,
        }
    }

    pub fn config_map(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let key = ObjectKey::new(self.namespace, name);
        let map = self.manifests.config_maps.get(&key)?;
        let text = map.data.iter().flatten();
        let text = text.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
        let binary = map.binary_data.iter().flatten();
        let binary = binary.map(|(key, value)| (key.clone(), value.0.clone()));
        Some(text.chain(binary).collect())
    }

    pub fn secret(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let key = ObjectKey::new(self.namespace, name);
        let secret = self.manifests.secrets.get(&key)?;
        let binary = secret.data.iter().flatten();
        let binary = binary.map(|(key, value)| (key.clone(), value.0.clone()));
        let text = secret.string_data.iter().flatten();
        let text = text.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
        Some(binary.chain(text).collect())
    }
}
