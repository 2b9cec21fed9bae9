//! The record of the node's enrolled pods: one JSON file for each, readable by root only.
//!
//! A record is written *before* the pod is redirected and removed *after* the redirection is gone,
//! so that a restarted agent, or the plugin without an agent, finds a record of everything that was
//! done. Files are replaced by renaming. The agent and the plugin both write here; each file has
//! one writer at a time, because a runtime never runs two CNI commands for one container
//! concurrently.
//!
//! ```text
//! <state dir>/boot-id            the boot of these records; namespace cookies restart then
//! <state dir>/node.json          the tier for new pods, read by a plugin without an agent
//! <state dir>/pods/<id>.json     one enrolled pod
//! <state dir>/tombstones/<id>    an attachment whose deletion a plugin could not complete
//! <state dir>/repairs.json       repairs of the agent; written by module `repairs`
//! ```

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use mesh_core::node::AttachmentId;
use mesh_runtime::file::{self, FileError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::redirect::{PodRedirect, Tier};

/// The kernel generates a new one at each boot.
const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    #[serde(flatten)]
    pub redirect: PodRedirect,
    /// The CNI attachments that requested it; the pod is removed with the last.
    pub attachments: Vec<RecordedAttachment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedAttachment {
    pub network: String,
    pub interface: String,
    pub addresses: Vec<IpAddr>,
}

/// What the plugin needs to know of the node when the agent does not respond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    pub tier: Tier,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} is damaged; remove it, and restart the pod or enrol the unit it belongs to")]
    Damaged {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "{id:?} is not a valid container id (letters, digits, '_', '.' and '-', beginning with a letter or a digit)"
    )]
    ContainerId { id: String },
}

impl Registry {
    /// Opens the registry, creating its directories when they are missing. Deletes the records of
    /// an earlier boot: their namespaces no longer exist, and their cookies may belong to others.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        let registry = Self {
            dir: dir.to_owned(),
        };
        registry.start_boot(&current_boot_id()?)?;
        Ok(registry)
    }

    /// Opens the registry that an agent of this boot created, for the plugin. Creates nothing: an
    /// agent that uninstalls the mesh removes the registry at any moment, and no later agent would
    /// remove it again.
    pub fn open_existing(dir: &Path) -> Result<Option<Self>, RegistryError> {
        let registry = Self {
            dir: dir.to_owned(),
        };
        let is_current_boot = registry.recorded_boot_id()? == Some(current_boot_id()?);
        Ok(is_current_boot.then_some(registry))
    }

    fn start_boot(&self, boot: &str) -> Result<(), RegistryError> {
        create_directory(&self.dir)?;
        if self
            .recorded_boot_id()?
            .is_some_and(|recorded| recorded != boot)
        {
            for stale in [self.pods_dir(), self.tombstones_dir()] {
                file::remove_tree(&stale).map_err(file::failed(
                    "cannot remove the records of an earlier boot in",
                    &stale,
                ))?;
            }
            remove(&self.node_path())?;
            remove(&repairs_path(&self.dir))?;
        }
        create_directory(&self.pods_dir())?;
        create_directory(&self.tombstones_dir())?;
        Ok(write(&self.boot_path(), boot.as_bytes())?)
    }

    fn recorded_boot_id(&self) -> Result<Option<String>, RegistryError> {
        let recorded = read(&self.boot_path())?;
        Ok(recorded.map(|recorded| recorded.trim().to_owned()))
    }

    pub fn get(&self, container_id: &str) -> Result<Option<PodRecord>, RegistryError> {
        read_json(&self.pod_path(container_id)?)
    }

    /// Returns whether a record exists, with one `stat`.
    pub fn has_record(dir: &Path, container_id: &str) -> Result<bool, RegistryError> {
        let path = Self {
            dir: dir.to_owned(),
        }
        .pod_path(container_id)?;
        Ok(fs::exists(&path).map_err(file::failed("cannot look for", &path))?)
    }

    /// Returns every record that can be read, and an error for each of the others.
    pub fn records(&self) -> Result<(Vec<PodRecord>, Vec<RegistryError>), RegistryError> {
        let mut records = Vec::new();
        let mut damaged = Vec::new();
        for path in files(&self.pods_dir())? {
            match read_json(&path) {
                Ok(Some(record)) => records.push(record),
                // Removed between listing and reading.
                Ok(None) => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((records, damaged))
    }

    pub fn put(&self, record: &PodRecord) -> Result<(), RegistryError> {
        Ok(write_json(
            &self.pod_path(&record.redirect.sandbox_id)?,
            record,
        )?)
    }

    pub fn remove(&self, container_id: &str) -> Result<(), RegistryError> {
        Ok(remove(&self.pod_path(container_id)?)?)
    }

    pub fn node(&self) -> Result<Option<NodeRecord>, RegistryError> {
        read_json(&self.node_path())
    }

    pub fn put_node(&self, node: &NodeRecord) -> Result<(), RegistryError> {
        Ok(write_json(&self.node_path(), node)?)
    }

    /// Records that the agent must delete an attachment.
    pub fn add_tombstone(&self, id: &AttachmentId) -> Result<(), RegistryError> {
        check_container_id(&id.container_id)?;
        Ok(write_json(&self.tombstone_path(id), id)?)
    }

    /// Returns the attachments that wait for their deletion. Removes damaged tombstones:
    /// reconciliation removes the pod anyway once its namespace no longer exists.
    pub fn tombstones(&self) -> Result<Vec<AttachmentId>, RegistryError> {
        let mut tombstones = Vec::new();
        for path in files(&self.tombstones_dir())? {
            match read_json(&path) {
                Ok(id) => tombstones.extend(id),
                Err(RegistryError::Damaged { .. }) => remove(&path)?,
                Err(error) => return Err(error),
            }
        }
        Ok(tombstones)
    }

    pub fn remove_tombstone(&self, id: &AttachmentId) -> Result<(), RegistryError> {
        Ok(remove(&self.tombstone_path(id))?)
    }

    /// From then on a plugin without an agent enrols no pod: the mesh is being uninstalled.
    pub fn close(&self) -> Result<(), RegistryError> {
        Ok(remove(&self.node_path())?)
    }

    /// Removes everything that this module ever wrote.
    pub fn erase(self) -> Result<(), RegistryError> {
        self.close()?;
        remove(&self.boot_path())?;
        remove(&repairs_path(&self.dir))?;
        for dir in [self.pods_dir(), self.tombstones_dir()] {
            remove_tree(&dir).map_err(file::failed("cannot remove", &dir))?;
        }
        // Fails when other files are in the directory, such as a running agent's socket.
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }

    fn pods_dir(&self) -> PathBuf {
        self.dir.join("pods")
    }

    fn tombstones_dir(&self) -> PathBuf {
        self.dir.join("tombstones")
    }

    fn boot_path(&self) -> PathBuf {
        self.dir.join("boot-id")
    }

    fn node_path(&self) -> PathBuf {
        self.dir.join("node.json")
    }

    fn pod_path(&self, container_id: &str) -> Result<PathBuf, RegistryError> {
        check_container_id(container_id)?;
        Ok(self.pods_dir().join(format!("{container_id}.json")))
    }

    fn tombstone_path(&self, id: &AttachmentId) -> PathBuf {
        self.tombstones_dir()
            .join(format!("{}@{}.json", id.container_id, id.interface))
    }
}

/// Returns the path of the record of repairs, which belongs to the boot as the others do.
pub(crate) fn repairs_path(dir: &Path) -> PathBuf {
    dir.join("repairs.json")
}

/// Checks the id by the rule of the CNI specification, which also prevents path traversal.
pub fn check_container_id(id: &str) -> Result<(), RegistryError> {
    let has_valid_start = id.starts_with(|first: char| first.is_ascii_alphanumeric());
    let has_valid_characters = id
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if has_valid_start && has_valid_characters {
        Ok(())
    } else {
        Err(RegistryError::ContainerId { id: id.to_owned() })
    }
}

fn current_boot_id() -> Result<String, FileError> {
    let boot = read(Path::new(KERNEL_BOOT_ID))?.unwrap_or_default();
    Ok(boot.trim().to_owned())
}

pub(crate) fn create_directory(path: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(file::failed("cannot create the directory", path))
}

/// Returns the files of a directory, without drafts, whose names begin with a dot.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>, FileError> {
    let failed = file::failed("cannot read the directory", dir);
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file::failed("cannot read", path)(error)),
    }
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RegistryError> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| RegistryError::Damaged {
            path: path.to_owned(),
            source,
        })
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let text = serde_json::to_vec_pretty(value).map_err(file::failed("cannot encode", path))?;
    write(path, &text)
}

fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    file::replace(path, &draft, 0o600, |file| file.write_all(content))
        .map_err(file::failed("cannot write", path))
}

pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    file::remove(path).map_err(file::failed("cannot remove", path))
}

/// Removes a directory. Retries when a plugin that had started before wrote a file meanwhile; one
/// that starts now finds no registry.
fn remove_tree(dir: &Path) -> io::Result<()> {
    const ATTEMPTS: usize = 10;
    for _ in 1..ATTEMPTS {
        match file::remove_tree(dir) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            other => return other,
        }
    }
    file::remove_tree(dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::redirect::{PodRef, RedirectSpec};

    fn record(id: &str) -> PodRecord {
        let pod = PodRef {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            uid: "1-2".to_owned(),
        };
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        PodRecord {
            redirect: PodRedirect {
                spec: RedirectSpec::from_annotations(&pod, &BTreeMap::new()).unwrap(),
                pod,
                sandbox_id: id.to_owned(),
                netns: "/run/netns/a".into(),
                cookie: u64::MAX,
                addresses: addresses.clone(),
                tier: Tier::Full,
            },
            attachments: vec![RecordedAttachment {
                network: "pods".to_owned(),
                interface: "eth0".to_owned(),
                addresses,
            }],
        }
    }

    fn attachment(id: &str) -> AttachmentId {
        AttachmentId {
            container_id: id.to_owned(),
            network: "pods".to_owned(),
            interface: "eth0".to_owned(),
        }
    }

    #[test]
    fn records_are_read_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.get("a").unwrap(), None);
        registry.put(&record("b")).unwrap();
        registry.put(&record("a")).unwrap();
        let (records, damaged) = Registry::open(dir.path()).unwrap().records().unwrap();
        assert_eq!(records, [record("a"), record("b")]);
        assert!(damaged.is_empty());
        assert!(Registry::has_record(dir.path(), "a").unwrap());
        registry.remove("a").unwrap();
        registry.remove("a").unwrap();
        assert!(!Registry::has_record(dir.path(), "a").unwrap());
    }

    #[test]
    fn damaged_record_is_reported_and_others_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("good")).unwrap();
        fs::write(dir.path().join("pods/bad.json"), "{\"pod\":").unwrap();
        fs::write(dir.path().join("pods/.good.json.17"), "half writ").unwrap();
        let (records, damaged) = registry.records().unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(damaged.len(), 1);
        assert!(damaged[0].to_string().contains("pods/bad.json is damaged"));
    }

    #[test]
    fn reboot_removes_all_records() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("a")).unwrap();
        registry.put_node(&NodeRecord { tier: Tier::Nft }).unwrap();
        registry.start_boot("another-boot").unwrap();
        assert_eq!(registry.get("a").unwrap(), None);
        assert_eq!(registry.node().unwrap(), None);
    }

    #[test]
    fn tombstones_are_listed_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let id = attachment("a");
        registry.add_tombstone(&id).unwrap();
        fs::write(dir.path().join("tombstones/half.json"), "{").unwrap();
        assert_eq!(registry.tombstones().unwrap(), std::slice::from_ref(&id));
        registry.remove_tombstone(&id).unwrap();
        assert!(registry.tombstones().unwrap().is_empty());
    }

    #[test]
    fn erased_registry_is_not_recreated() {
        let dir = tempfile::tempdir().unwrap();
        let id = attachment("a");
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("a")).unwrap();
        registry.add_tombstone(&id).unwrap();
        let plugin = Registry::open_existing(dir.path()).unwrap().unwrap();
        registry.erase().unwrap();
        assert!(!dir.path().exists());
        plugin.add_tombstone(&id).unwrap_err();
        plugin.put(&record("a")).unwrap_err();
        assert!(Registry::open_existing(dir.path()).unwrap().is_none());
        assert!(!dir.path().exists());
    }

    #[test]
    fn plugin_ignores_registry_of_earlier_boot() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        assert!(Registry::open_existing(dir.path()).unwrap().is_some());
        registry.start_boot("another-boot").unwrap();
        assert!(Registry::open_existing(dir.path()).unwrap().is_none());
    }

    #[test]
    fn container_id_cannot_leave_directory() {
        for bad in ["", "../a", "a/b", ".a", "a b", "a\0", "-a"] {
            assert!(check_container_id(bad).is_err(), "{bad:?}");
        }
        check_container_id("0aZ_.-").unwrap();
    }
}
