//! The folder of objects that the node writes for the controllers: one YAML file an object, changed
//! only when the object is.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{file, manifest::Key};

/// The objects of one moment, by the names of their files.
#[derive(Debug, Default)]
pub struct Objects {
    files: BTreeMap<String, String>,
}

/// The folder, and what was last written to it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    written: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("write {kind} {key} as YAML")]
    Serialize {
        kind: &'static str,
        key: Key,
        #[source]
        source: serde_norway::Error,
    },
    #[error("write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Objects {
    pub fn add(
        &mut self,
        kind: &'static str,
        key: &Key,
        object: &impl Serialize,
    ) -> Result<(), ObjectError> {
        let text = serde_norway::to_string(object).map_err(|source| ObjectError::Serialize {
            kind,
            key: key.clone(),
            source,
        })?;
        let Key { namespace, name } = key;
        let file = format!("{}_{namespace}_{name}.yaml", kind.to_lowercase());
        self.files.insert(file, text);
        Ok(())
    }
}

impl Folder {
    pub fn create(path: &Path) -> Result<Self, ObjectError> {
        fs::create_dir_all(path).map_err(|source| ObjectError::Write {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            written: BTreeMap::new(),
        })
    }

    /// Makes the folder hold exactly these objects.
    pub fn update(&mut self, objects: Objects) -> Result<(), ObjectError> {
        let error = |path: &Path| {
            let path = path.to_owned();
            |source| ObjectError::Write { path, source }
        };
        for (name, text) in &objects.files {
            if self.written.get(name) != Some(text) {
                let path = self.path.join(name);
                file::write(&path, text.as_bytes(), 0o644).map_err(error(&path))?;
            }
        }
        for name in self.written.keys() {
            if !objects.files.contains_key(name) {
                let path = self.path.join(name);
                file::remove(&path).map_err(error(&path))?;
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
    fn files_change_only_with_their_objects() {
        let temporary = tempfile::tempdir().unwrap();
        let mut folder = Folder::create(temporary.path()).unwrap();
        let mut update = |objects: &[(&str, u32)]| {
            let mut all = Objects::default();
            for (name, value) in objects {
                all.add("Pod", &Key::new("ns", *name), value).unwrap();
            }
            folder.update(all).unwrap();
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
