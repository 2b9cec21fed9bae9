//! The directory of objects that the node writes for the controllers: one YAML file for each
//! object, which changes only with the object.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::file::{self, FileError};
use crate::manifest::ObjectKey;

/// The YAML of objects by file name.
#[derive(Debug, Default)]
pub struct ObjectSet {
    files: BTreeMap<String, String>,
}

/// The directory and the objects that were written last.
#[derive(Debug)]
pub struct ObjectDirectory {
    path: PathBuf,
    written: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("serialize {kind} {key} as YAML")]
    Serialize {
        kind: &'static str,
        key: ObjectKey,
        source: serde_norway::Error,
    },
    #[error(transparent)]
    Write(#[from] FileError),
}

/// Returns what the names of the files of a kind begin with.
pub fn file_prefix(kind: &str) -> String {
    format!("{}_", kind.to_lowercase())
}

impl ObjectSet {
    pub fn add(
        &mut self,
        kind: &'static str,
        key: &ObjectKey,
        object: &impl Serialize,
    ) -> Result<(), ObjectError> {
        let text = serde_norway::to_string(object).map_err(|source| ObjectError::Serialize {
            kind,
            key: key.clone(),
            source,
        })?;
        let ObjectKey { namespace, name } = key;
        let file = format!("{}{namespace}_{name}.yaml", file_prefix(kind));
        self.files.insert(file, text);
        Ok(())
    }
}

impl ObjectDirectory {
    pub fn create(path: &Path) -> Result<Self, FileError> {
        fs::create_dir_all(path).map_err(file::failed("write", path))?;
        Ok(Self {
            path: path.to_owned(),
            written: BTreeMap::new(),
        })
    }

    /// Writes changed objects and removes all others, so that the directory has exactly these
    /// objects.
    pub fn update(&mut self, objects: ObjectSet) -> Result<(), FileError> {
        for (name, text) in &objects.files {
            if self.written.get(name) != Some(text) {
                let path = self.path.join(name);
                file::write(&path, text.as_bytes(), 0o644).map_err(file::failed("write", &path))?;
            }
        }
        for name in self.written.keys() {
            if !objects.files.contains_key(name) {
                let path = self.path.join(name);
                file::remove(&path).map_err(file::failed("write", &path))?;
            }
        }
        self.written = objects.files;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn unchanged_objects_are_not_rewritten() {
        let temporary = tempfile::tempdir().unwrap();
        let mut directory = ObjectDirectory::create(temporary.path()).unwrap();
        let mut update = |objects: &[(&str, u32)]| {
            let mut all = ObjectSet::default();
            for (name, value) in objects {
                all.add("Pod", &ObjectKey::new("ns", *name), value).unwrap();
            }
            directory.update(all).unwrap();
        };
        let inode = |name: &str| {
            let path = temporary.path().join(format!("pod_ns_{name}.yaml"));
            fs::metadata(path).map(|meta| meta.ino()).ok()
        };
        update(&[("a", 1), ("b", 1)]);
        let (a, b) = (inode("a"), inode("b"));
        assert!(a.is_some() && b.is_some());
        update(&[("a", 1), ("b", 2)]);
        assert_eq!(inode("a"), a);
        let text = fs::read_to_string(temporary.path().join("pod_ns_b.yaml")).unwrap();
        assert_eq!(text.trim(), "2");
        update(&[("b", 2)]);
        assert_eq!(inode("a"), None);
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1);
    }
}
