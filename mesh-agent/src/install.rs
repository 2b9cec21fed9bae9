//! mesh-cni on the node: its file among the CNI plugins, and its entry in the network configuration
//! that the container runtime uses. The daemon maintains both ([`keep_installed`]) and removes them
//! when the mesh is uninstalled ([`Installer::remove_entries`], [`Installer::remove_plugin`]).
//!
//! A runtime reads the first file of its directory, by name, and calls the plugins that the file
//! lists. That file belongs to the node's network plugin; the agent adds one entry to it and
//! changes nothing else ([`chain`]). When the owner rewrites the file, or another network plugin
//! adds a file that sorts first, the agent adds the entry again. It never creates a configuration
//! of its own: without a network there is nothing to chain to, and pods cannot start on such a node
//! anyway.

mod chain;
mod directory;
mod keeper;
mod plugin_file;
mod watch;

use std::io;
use std::path::{Path, PathBuf};

use mesh_core::node::CniStatus;
use mesh_runtime::file::FileError;
use mesh_runtime::log::chain;
use parking_lot::Mutex;
use serde::Serialize;

use chain::{Chain, ChainError, PLUGIN};
use directory::{Directory, File};

pub use keeper::{Outcome, keep_installed};
pub use plugin_file::PluginFile;

/// A configuration of one plugin cannot hold a second one. It is renamed with this extension, which
/// no runtime reads, and restored later.
const BACKUP_EXTENSION: &str = "before-mesh";
/// Appended to the whole old name of the list that replaces it, so that it sorts where the old one
/// did, even before `10-x.conflist`.
const LIST_EXTENSION: &str = "conflist";

#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's configuration directory, as this process sees it.
    pub conf_dir: PathBuf,
    /// The directory of the node's plugins, as this process sees it.
    pub bin_dir: PathBuf,
    pub plugin: PathBuf,
    /// The plugin's settings, as paths on the node.
    pub socket: PathBuf,
    pub pin_dir: PathBuf,
    pub state_dir: PathBuf,
}

/// Runs one check, or one removal, at a time; synchronous, with a few small files each.
#[derive(Debug)]
pub struct Installer {
    directory: Directory,
    bin_dir: PathBuf,
    plugin: PathBuf,
    entry: Entry,
    /// Locked while files change; true once everything was removed for good.
    is_removed: Mutex<bool>,
}

/// The plugin's entry, in the order of fields that a reader expects.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(rename = "type")]
    kind: &'static str,
    socket: PathBuf,
    pin_dir: PathBuf,
    state_dir: PathBuf,
    capabilities: Capabilities,
}

#[derive(Debug, Serialize)]
struct Capabilities {
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    annotations: bool,
}

/// The state of the CNI configuration after a check, and what the check changed.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainReport {
    pub status: CniStatus,
    pub written: Option<String>,
    /// Warnings for an administrator although the entry is in place, one sentence each.
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot read the plugin's program {path}; it belongs in the directory of mesh-agent")]
    NoPlugin { path: PathBuf, source: io::Error },
    #[error(
        "cannot install {path}; if the node keeps its CNI plugins elsewhere or read-only, name the directory with --cni-bin-dir"
    )]
    Plugin { path: PathBuf, source: io::Error },
}

struct ActiveConfig<'a> {
    file: &'a File,
    /// The file's text, or a list of its one plugin.
    text: String,
    chain: Chain,
}

impl Installer {
    pub fn new(settings: Settings) -> Self {
        let entry = Entry {
            kind: PLUGIN,
            socket: settings.socket,
            pin_dir: settings.pin_dir,
            state_dir: settings.state_dir,
            capabilities: Capabilities { annotations: true },
        };
        Self {
            directory: Directory::new(settings.conf_dir),
            bin_dir: settings.bin_dir,
            plugin: settings.plugin,
            entry,
            is_removed: Mutex::new(false),
        }
    }

    pub fn conf_dir(&self) -> &Path {
        self.directory.path()
    }

    /// Installs the plugin's file unless it is there and executable, and returns its earlier state.
    /// A file of the same length counts as intact unless `compare_content`.
    pub fn install_plugin(&self, compare_content: bool) -> Result<PluginFile, InstallError> {
        let is_removed = self.is_removed.lock();
        if *is_removed {
            Ok(PluginFile::Intact)
        } else {
            plugin_file::install(&self.plugin, &self.bin_dir, compare_content)
        }
    }

    /// Finds the configuration that the runtime uses and ensures that it has the plugin's entry.
    pub fn ensure_chained(&self) -> Result<ChainReport, InstallError> {
        let is_removed = self.is_removed.lock();
        let files = self.directory.files()?;
        let mut report = ChainReport {
            status: CniStatus {
                conf_dir: self.conf_dir().to_owned(),
                ..CniStatus::default()
            },
            written: None,
            notes: notes(&files),
        };
        let active = match active_config(&files) {
            Ok(_) if *is_removed => {
                "the mesh is being removed from this node".clone_into(&mut report.status.reason);
                return Ok(report);
            }
            Ok(active) => active,
            Err(reason) => {
                report.status.reason = reason;
                return Ok(report);
            }
        };
        report.status.network = Some(active.chain.network.clone());
        report.status.plugins = active.chain.kinds();
        report.status.file = Some(active.file.name.clone());
        match chain::with_entry(&active.text, &self.entry) {
            Ok(None) if active.file.is_list() => {}
            Ok(meshed) => {
                let meshed = meshed.unwrap_or(active.text);
                let name = self.write(active.file, &meshed)?;
                report.status.plugins = Chain::read(&meshed)
                    .map(|chain| chain.kinds())
                    .unwrap_or_default();
                report.status.file = Some(name.clone());
                report.written = Some(name);
            }
            Err(error) => {
                report.status.reason = format!("{}: {}", active.file.name, chain(&error));
                return Ok(report);
            }
        }
        report.status.chained = true;
        Ok(report)
    }

    /// Removes the plugin's entry from every file and restores renamed files. Until another agent
    /// starts, nothing is installed again. Continues after errors.
    pub fn remove_entries(&self) -> Vec<FileError> {
        let mut is_removed = self.is_removed.lock();
        *is_removed = true;
        let mut errors = Vec::new();
        let files = match self.directory.files() {
            Ok(files) => files,
            Err(error) => return vec![error],
        };
        let exists = |name: &str| files.iter().any(|file| file.name == name);
        for file in &files {
            let original = file.name.strip_suffix(&format!(".{BACKUP_EXTENSION}"));
            let substituted = file.name.strip_suffix(&format!(".{LIST_EXTENSION}"));
            let result = match (original, substituted) {
                (Some(original), _) => self.restore(file, original, exists(original)),
                // Removed when the file that it replaced is restored.
                (None, Some(original)) if exists(&format!("{original}.{BACKUP_EXTENSION}")) => {
                    Ok(())
                }
                _ => self.remove_entry(file),
            };
            errors.extend(result.err());
        }
        errors
    }

    pub fn remove_plugin(&self) -> Result<(), FileError> {
        plugin_file::remove(&self.bin_dir)
    }

    /// Writes the list that has the entry, and returns its name.
    fn write(&self, file: &File, list: &str) -> Result<String, FileError> {
        if file.is_list() {
            self.directory.replace(file, &file.name, list)?;
            return Ok(file.name.clone());
        }
        let name = format!("{}.{LIST_EXTENSION}", file.name);
        // The list first: until the old file is renamed it sorts second and is not used.
        self.directory.replace(file, &name, list)?;
        let backup = format!("{}.{BACKUP_EXTENSION}", file.name);
        self.directory.rename(&file.name, &backup)?;
        Ok(name)
    }

    /// Restores a renamed file, unless its owner has written a new one since.
    fn restore(&self, backup: &File, original: &str, exists: bool) -> Result<(), FileError> {
        // Before the list is removed, so that one of them always exists.
        if exists {
            self.directory.remove(&backup.name)?;
        } else {
            self.directory.rename(&backup.name, original)?;
        }
        self.directory
            .remove(&format!("{original}.{LIST_EXTENSION}"))
    }

    fn remove_entry(&self, file: &File) -> Result<(), FileError> {
        match file.text().map(chain::without_entry) {
            Ok(Ok(Some(text))) => self.directory.replace(file, &file.name, &text),
            // Without the entry, or not text that could contain it.
            _ => Ok(()),
        }
    }
}

/// Returns the first file, in the runtime's order, that a pod could be started with.
fn active_config(files: &[File]) -> Result<ActiveConfig<'_>, String> {
    let mut unusable = Vec::new();
    for file in files.iter().filter(|file| file.is_configuration()) {
        match read(file) {
            Ok((text, chain)) => return Ok(ActiveConfig { file, text, chain }),
            Err(why) => unusable.push(format!("{}: {why}", file.name)),
        }
    }
    Err(if unusable.is_empty() {
        "there is no network configuration yet; the node's network plugin writes one when it is installed".to_owned()
    } else {
        format!(
            "no network configuration can be used ({})",
            unusable.join("; ")
        )
    })
}

fn read(file: &File) -> Result<(String, Chain), String> {
    let text = file.text().map_err(|error| error.to_string())?;
    let list = |text: &str| -> Result<(String, Chain), ChainError> {
        let text = if file.is_list() {
            text.to_owned()
        } else {
            chain::as_list(text)?
        };
        let chain = Chain::read(&text)?;
        Ok((text, chain))
    };
    list(text).map_err(|error| chain(&error))
}

/// Returns warnings about files with the entry that another program renamed so that no runtime
/// reads them, and about plugins that redirect pods too.
fn notes(files: &[File]) -> Vec<String> {
    let mut notes = Vec::new();
    for file in files {
        let Ok((_, chain)) = read(file) else {
            continue;
        };
        if !file.is_configuration() && chain.is_meshed() {
            notes.push(format!(
                "a program renamed the CNI configuration that mesh-cni was chained into to {}; Cilium does so unless cni.exclusive is false",
                file.name
            ));
        }
        if file.is_configuration() && chain.kinds().iter().any(|kind| kind == "linkerd-cni") {
            notes.push(format!(
                "linkerd-cni is chained in {} too, so meshed pods are redirected twice; remove it",
                file.name
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
