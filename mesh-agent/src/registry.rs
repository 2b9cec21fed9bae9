//! What the node remembers of its enrolled pods: one JSON file for each, in a directory that only
//! root can read.
//!
//! The record is written *before* the pod is redirected and removed *after* the redirection is
//! gone, so that whoever comes next (a restarted agent, the plugin without an agent) finds a record
//! for everything that was done. Files are replaced by renaming. The agent and the plugin both
//! write here; each file has one writer at a time, because a runtime never runs two CNI commands
//! for one container at once.
//!
//! ```text
//! <state dir>/boot-id            the boot these records belong to; network namespace cookies start again with each
//! <state dir>/node.json          the tier for new pods, for a plugin that finds no agent
//! <state dir>/pods/<id>.json     one enrolled pod
//! <state dir>/tombstones/<id>    an attachment that a plugin was told to delete and could not
//! <state dir>/repairs.json       what the agent put right; written by module `repairs`, removed
//! here
//! ```

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use mesh_core::node::AttachmentId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::redirect::{PodRedirect, Tier};

/// The kernel makes a new one at each boot.
const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
}

/// One enrolled pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    #[serde(flatten)]
    pub redirect: PodRedirect,
    /// The CNI attachments that asked for it; the pod is forgotten with the last.
    pub attachments: Vec<RecordedAttachment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedAttachment {
    pub network: String,
    pub interface: String,
    pub addresses: Vec<IpAddr>,
}

/// What the plugin must know of the node when the agent does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRecord {
    pub tier: Tier,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot {action} {path}")]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is damaged; remove it and restart the pod it belongs to")]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "{id:?} is no container id (letters, digits, '_', '.' and '-', beginning with a letter or a digit)"
    )]
    ContainerId { id: String },
}

impl Registry {
    /// Opens the registry, making its directories when they are missing. Records of an earlier boot
    /// are thrown away: the namespaces they speak of are gone and their cookies may belong to
    /// others by now.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        let registry = Self {
            dir: dir.to_owned(),
        };
        registry.begin(&this_boot()?)?;
        Ok(registry)
    }

    /// The registry that an agent opened since the machine started, for the plugin. Makes nothing:
    /// an agent that leaves the node takes it away at any moment, and nobody would clear it a
    /// second time.
    pub fn left_behind(dir: &Path) -> Result<Option<Self>, RegistryError> {
        let registry = Self {
            dir: dir.to_owned(),
        };
        let is_of_this_boot = registry.recorded_boot()? == Some(this_boot()?);
        Ok(is_of_this_boot.then_some(registry))
    }

    fn begin(&self, boot: &str) -> Result<(), RegistryError> {
        make_directory(&self.dir)?;
        if self
            .recorded_boot()?
            .is_some_and(|recorded| recorded != boot)
        {
            for stale in [self.pods_dir(), self.tombstones_dir()] {
                absent_is_fine(fs::remove_dir_all(&stale)).map_err(|source| {
                    file_error("remove the records of an earlier boot in", &stale, source)
                })?;
            }
            remove(&self.node_path())?;
            remove(&repairs_path(&self.dir))?;
        }
        make_directory(&self.pods_dir())?;
        make_directory(&self.tombstones_dir())?;
        write(&self.boot_path(), boot.as_bytes())
    }

    fn recorded_boot(&self) -> Result<Option<String>, RegistryError> {
        let recorded = read(&self.boot_path())?;
        Ok(recorded.map(|recorded| recorded.trim().to_owned()))
    }

    pub fn get(&self, container_id: &str) -> Result<Option<Record>, RegistryError> {
        read_json(&self.pod_path(container_id)?)
    }

    /// Is there a record? One `stat`; for callers that have nothing to do when there is none.
    pub fn knows(dir: &Path, container_id: &str) -> Result<bool, RegistryError> {
        let path = Self {
            dir: dir.to_owned(),
        }
        .pod_path(container_id)?;
        fs::exists(&path).map_err(|source| file_error("look for", &path, source))
    }

    /// Every record that can be read, and what is wrong with the others.
    pub fn records(&self) -> Result<(Vec<Record>, Vec<RegistryError>), RegistryError> {
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

    pub fn put(&self, record: &Record) -> Result<(), RegistryError> {
        write_json(&self.pod_path(&record.redirect.sandbox_id)?, record)
    }

    pub fn remove(&self, container_id: &str) -> Result<(), RegistryError> {
        remove(&self.pod_path(container_id)?)
    }

    pub fn node(&self) -> Result<Option<NodeRecord>, RegistryError> {
        read_json(&self.node_path())
    }

    pub fn put_node(&self, node: &NodeRecord) -> Result<(), RegistryError> {
        write_json(&self.node_path(), node)
    }

    /// Notes that an attachment is to be deleted by whoever can.
    pub fn bury(&self, id: &AttachmentId) -> Result<(), RegistryError> {
        check_container_id(&id.container_id)?;
        write_json(&self.tombstone_path(id), id)
    }

    /// The attachments that wait for their deletion. A damaged tombstone is removed: what it asked
    /// for, the sweep of dead namespaces does too.
    pub fn buried(&self) -> Result<Vec<AttachmentId>, RegistryError> {
        let mut buried = Vec::new();
        for path in files(&self.tombstones_dir())? {
            match read_json(&path) {
                Ok(id) => buried.extend(id),
                Err(RegistryError::Damaged { .. }) => remove(&path)?,
                Err(error) => return Err(error),
            }
        }
        Ok(buried)
    }

    pub fn unbury(&self, id: &AttachmentId) -> Result<(), RegistryError> {
        remove(&self.tombstone_path(id))
    }

    /// From now on a plugin that finds no agent enrols nobody: the node is being left.
    pub fn close(&self) -> Result<(), RegistryError> {
        remove(&self.node_path())
    }

    /// Removes everything that this module ever wrote, and the directory if nothing else is in it.
    pub fn erase(self) -> Result<(), RegistryError> {
        self.close()?;
        remove(&self.boot_path())?;
        remove(&repairs_path(&self.dir))?;
        for dir in [self.pods_dir(), self.tombstones_dir()] {
            remove_tree(&dir).map_err(|source| file_error("remove", &dir, source))?;
        }
        // Someone else's files, such as the socket of an agent that still runs, keep the directory.
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

/// The record of repairs, which belongs to the boot as the others do.
pub(crate) fn repairs_path(dir: &Path) -> PathBuf {
    dir.join("repairs.json")
}

/// The rule of the CNI specification; it also keeps the id from leaving the directory.
pub fn check_container_id(id: &str) -> Result<(), RegistryError> {
    let starts_well = id.starts_with(|first: char| first.is_ascii_alphanumeric());
    let goes_on_well = id
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if starts_well && goes_on_well {
        Ok(())
    } else {
        Err(RegistryError::ContainerId { id: id.to_owned() })
    }
}

fn this_boot() -> Result<String, RegistryError> {
    let boot = read(Path::new(KERNEL_BOOT_ID))?.unwrap_or_default();
    Ok(boot.trim().to_owned())
}

fn make_directory(path: &Path) -> Result<(), RegistryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| file_error("make the directory", path, source))
}

/// The finished files of a directory; names that begin with a dot are being written.
fn files(dir: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    let failed = |source| file_error("read the directory", dir, source);
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Option<String>, RegistryError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error("read", path, source)),
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

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), RegistryError> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|error| file_error("encode", path, error.into()))?;
    write(path, &text)
}

/// Writes beside the file and renames, so that a reader sees the old content or the new.
fn write(path: &Path, content: &[u8]) -> Result<(), RegistryError> {
    let failed = |source| file_error("write", path, source);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .map_err(failed)?;
    let written = file
        .write_all(content)
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.map_err(failed)
}

fn remove(path: &Path) -> Result<(), RegistryError> {
    absent_is_fine(fs::remove_file(path)).map_err(|source| file_error("remove", path, source))
}

/// Again when a plugin that had begun before wrote a file in the meantime; one that begins now
/// finds no registry.
fn remove_tree(dir: &Path) -> io::Result<()> {
    const ATTEMPTS: usize = 10;
    for _ in 1..ATTEMPTS {
        match absent_is_fine(fs::remove_dir_all(dir)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            other => return other,
        }
    }
    absent_is_fine(fs::remove_dir_all(dir))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> RegistryError {
    RegistryError::File {
        action,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::redirect::{PodRef, RedirectSpec};

    fn record(id: &str) -> Record {
        let pod = PodRef {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            uid: "1-2".to_owned(),
        };
        let addresses = vec!["10.0.0.1".parse().unwrap()];
        Record {
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
    fn records_come_back_as_they_were_put() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        assert_eq!(registry.get("a").unwrap(), None);
        registry.put(&record("b")).unwrap();
        registry.put(&record("a")).unwrap();
        let (records, damaged) = Registry::open(dir.path()).unwrap().records().unwrap();
        assert_eq!(records, [record("a"), record("b")]);
        assert!(damaged.is_empty());
        assert!(Registry::knows(dir.path(), "a").unwrap());
        registry.remove("a").unwrap();
        registry.remove("a").unwrap();
        assert!(!Registry::knows(dir.path(), "a").unwrap());
    }

    #[test]
    fn a_damaged_record_is_named_and_hides_no_other() {
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
    fn a_reboot_ends_all_records() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("a")).unwrap();
        registry.put_node(&NodeRecord { tier: Tier::Nft }).unwrap();
        registry.begin("another-boot").unwrap();
        assert_eq!(registry.get("a").unwrap(), None);
        assert_eq!(registry.node().unwrap(), None);
    }

    #[test]
    fn tombstones_wait_for_their_deletion() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let id = attachment("a");
        registry.bury(&id).unwrap();
        fs::write(dir.path().join("tombstones/half.json"), "{").unwrap();
        assert_eq!(registry.buried().unwrap(), std::slice::from_ref(&id));
        registry.unbury(&id).unwrap();
        assert!(registry.buried().unwrap().is_empty());
    }

    #[test]
    fn whoever_comes_after_the_erasure_makes_nothing_anew() {
        let dir = tempfile::tempdir().unwrap();
        let id = attachment("a");
        let registry = Registry::open(dir.path()).unwrap();
        registry.put(&record("a")).unwrap();
        registry.bury(&id).unwrap();
        let plugin = Registry::left_behind(dir.path()).unwrap().unwrap();
        registry.erase().unwrap();
        assert!(!dir.path().exists());
        plugin.bury(&id).unwrap_err();
        plugin.put(&record("a")).unwrap_err();
        assert!(Registry::left_behind(dir.path()).unwrap().is_none());
        assert!(!dir.path().exists());
    }

    #[test]
    fn the_plugin_finds_nothing_of_an_earlier_boot() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        assert!(Registry::left_behind(dir.path()).unwrap().is_some());
        registry.begin("another-boot").unwrap();
        assert!(Registry::left_behind(dir.path()).unwrap().is_none());
    }

    #[test]
    fn an_id_cannot_leave_the_directory() {
        for bad in ["", "../a", "a/b", ".a", "a b", "a\0", "-a"] {
            assert!(check_container_id(bad).is_err(), "{bad:?}");
        }
        check_container_id("0aZ_.-").unwrap();
    }
}
