//! mesh-cni on the node: its file among the CNI plugins, and its entry in the network configuration
//! that the container runtime uses. Called by the daemon, which keeps it there ([`keep`]) and takes
//! it away when the mesh is uninstalled ([`Installer::remove`]).
//!
//! A runtime reads the first file of its directory, by name, and calls the plugins that the file
//! lists. That file belongs to the node's network, whichever it is; we add one entry to it and
//! touch nothing else ([`chain`]). When its owner writes it again, or another network brings a file
//! that comes first, the entry is put in again. We never make a configuration of our own: without a
//! network there is nothing to chain to, and the pods of such a node have to wait for it anyway.

mod chain;
mod directory;
mod keeper;
mod plugin_file;
mod watch;

use std::{
    io,
    path::{Path, PathBuf},
};

use mesh_core::node::CniStatus;
use mesh_runtime::log::chain;
use parking_lot::Mutex;
use serde::Serialize;

pub use keeper::{Outcome, keep};
pub use plugin_file::PluginFile;

use chain::{Chain, ChainError, PLUGIN};
use directory::{Directory, File};

/// A configuration of one plugin cannot hold a second one. It is moved aside under this extension,
/// which no runtime reads, and stays there to be put back.
const SET_ASIDE: &str = "before-mesh";
/// What the list that takes its place has after the whole old name: so it sorts where the old one
/// did, before `10-x.conflist` even.
const AS_LIST: &str = "conflist";

#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's configuration directory, as this process sees it.
    pub conf_dir: PathBuf,
    /// The directory of the node's plugins, as this process sees it.
    pub bin_dir: PathBuf,
    /// The plugin to install.
    pub plugin: PathBuf,
    /// What the plugin is told, in the node's own paths.
    pub socket: PathBuf,
    pub pin_dir: PathBuf,
    pub state_dir: PathBuf,
}

/// Does one look, or one removal, at a time; synchronous, a few small files each.
#[derive(Debug)]
pub struct Installer {
    directory: Directory,
    bin_dir: PathBuf,
    plugin: PathBuf,
    entry: Entry,
    /// Held by whoever changes something; true once everything was removed, after which nothing is
    /// put there again.
    is_removed: Mutex<bool>,
}

/// What the plugin is told, in the order in which a reader expects it.
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

/// What a look at the directory found and did.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    pub status: CniStatus,
    /// The file that our entry was written into.
    pub written: Option<String>,
    /// What an administrator should know though the entry is in place, one sentence each.
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("cannot {action} {path}")]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the plugin's program {path} cannot be read; it belongs beside mesh-agent")]
    NoPlugin {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "cannot install {path}; if the node keeps its CNI plugins elsewhere or read-only, name the directory with --cni-bin-dir"
    )]
    Plugin {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The configuration that a runtime takes.
struct Primary<'a> {
    file: &'a File,
    /// As it is, or as a list of its one plugin.
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

    /// Puts the plugin's file where the runtime looks for it, unless it is there and can be
    /// executed, and says what was found. A file of the same length is taken for the same one
    /// unless `thoroughly`.
    pub fn install_plugin(&self, thoroughly: bool) -> Result<PluginFile, InstallError> {
        let is_removed = self.is_removed.lock();
        match *is_removed {
            true => Ok(PluginFile::Intact),
            false => plugin_file::install(&self.plugin, &self.bin_dir, thoroughly),
        }
    }

    /// Finds the configuration that the runtime uses and sees to it that our entry is in it.
    pub fn look(&self) -> Result<Look, InstallError> {
        let is_removed = self.is_removed.lock();
        let files = self.directory.files()?;
        let mut look = Look {
            status: CniStatus {
                conf_dir: self.conf_dir().to_owned(),
                ..CniStatus::default()
            },
            written: None,
            notes: notes(&files),
        };
        let primary = match primary(&files) {
            Ok(_) if *is_removed => {
                "the mesh is being removed from this node".clone_into(&mut look.status.reason);
                return Ok(look);
            }
            Ok(primary) => primary,
            Err(reason) => {
                look.status.reason = reason;
                return Ok(look);
            }
        };
        look.status.network = Some(primary.chain.network.clone());
        look.status.plugins = primary.chain.kinds();
        look.status.file = Some(primary.file.name.clone());
        match chain::with_entry(&primary.text, &self.entry) {
            Ok(None) if primary.file.is_list() => {}
            Ok(meshed) => {
                let meshed = meshed.unwrap_or(primary.text);
                let name = self.write(primary.file, &meshed)?;
                look.status.plugins = Chain::read(&meshed)
                    .map(|chain| chain.kinds())
                    .unwrap_or_default();
                look.status.file = Some(name.clone());
                look.written = Some(name);
            }
            Err(error) => {
                look.status.reason = format!("{}: {}", primary.file.name, chain(&error));
                return Ok(look);
            }
        }
        look.status.chained = true;
        Ok(look)
    }

    /// Takes our entry out of every file and puts back what was set aside; for good, until another
    /// agent starts. The first error ends nothing: what can be done is done.
    pub fn remove_entries(&self) -> Vec<InstallError> {
        let mut is_removed = self.is_removed.lock();
        *is_removed = true;
        let mut errors = Vec::new();
        let files = match self.directory.files() {
            Ok(files) => files,
            Err(error) => return vec![error],
        };
        let is_there = |name: &str| files.iter().any(|file| file.name == name);
        for file in &files {
            let original = file.name.strip_suffix(&format!(".{SET_ASIDE}"));
            let substituted = file.name.strip_suffix(&format!(".{AS_LIST}"));
            let result = match (original, substituted) {
                (Some(original), _) => self.put_back(file, original, is_there(original)),
                // Gone by now, with what it stood for put back.
                (None, Some(original)) if is_there(&format!("{original}.{SET_ASIDE}")) => Ok(()),
                _ => self.remove_entry(file),
            };
            errors.extend(result.err());
        }
        errors
    }

    /// Removes the plugin's file.
    pub fn remove_plugin(&self) -> Result<(), InstallError> {
        plugin_file::remove(&self.bin_dir)
    }

    /// Writes the list that has our entry, and returns its name.
    fn write(&self, file: &File, list: &str) -> Result<String, InstallError> {
        if file.is_list() {
            self.directory.replace(file, &file.name, list)?;
            return Ok(file.name.clone());
        }
        let name = format!("{}.{AS_LIST}", file.name);
        // The list first: until the old file is gone it comes second and is not used.
        self.directory.replace(file, &name, list)?;
        let aside = format!("{}.{SET_ASIDE}", file.name);
        self.directory.rename(&file.name, &aside)?;
        Ok(name)
    }

    /// Gives a file that was set aside its name again, unless its owner has written a new one
    /// since.
    fn put_back(&self, aside: &File, original: &str, is_there: bool) -> Result<(), InstallError> {
        // Before its substitute goes, so that there is no moment without either.
        match is_there {
            true => self.directory.remove(&aside.name)?,
            false => self.directory.rename(&aside.name, original)?,
        }
        self.directory.remove(&format!("{original}.{AS_LIST}"))
    }

    fn remove_entry(&self, file: &File) -> Result<(), InstallError> {
        match file.text().map(chain::without_entry) {
            Ok(Ok(Some(text))) => self.directory.replace(file, &file.name, &text),
            // Not ours, or no text that could hold our entry.
            _ => Ok(()),
        }
    }
}

/// The first file, in a runtime's order, that a pod could be started with.
fn primary(files: &[File]) -> Result<Primary<'_>, String> {
    let mut unusable = Vec::new();
    for file in files.iter().filter(|file| file.is_configuration()) {
        match read(file) {
            Ok((text, chain)) => return Ok(Primary { file, text, chain }),
            Err(why) => unusable.push(format!("{}: {why}", file.name)),
        }
    }
    Err(match unusable.is_empty() {
        true => "there is no network configuration yet; the node's network plugin writes one when it is installed".to_owned(),
        false => format!(
            "no network configuration can be used ({})",
            unusable.join("; ")
        ),
    })
}

fn read(file: &File) -> Result<(String, Chain), String> {
    let text = file.text().map_err(|error| error.to_string())?;
    let list = |text: &str| -> Result<(String, Chain), ChainError> {
        let text = match file.is_list() {
            true => text.to_owned(),
            false => chain::as_list(text)?,
        };
        let chain = Chain::read(&text)?;
        Ok((text, chain))
    };
    list(text).map_err(|error| error.to_string())
}

/// Files with our entry under a name that no runtime reads: somebody moved them away. And plugins
/// that do the same as ours.
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
