//! Adds the plugin's entry to the text of a CNI network configuration, finds it and removes it.
//! Pure; the parent module reads and writes the files.
//!
//! The text is edited and never re-serialised from a parsed form: key order, number formats,
//! spacing and fields that only other plugins understand stay byte for byte as their owner wrote
//! them. Removing the entry restores the original text.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cni::Version;

/// The name of the plugin's file, and so its `type`.
pub(crate) const PLUGIN: &str = "mesh-cni";

/// A list of plugins (`*.conflist`) that a container runtime would use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) network: String,
    versions: Vec<String>,
    plugins: Vec<Plugin>,
}

#[derive(Debug, PartialEq, Eq)]
struct Plugin {
    kind: String,
    entry: Value,
    start: usize,
    end: usize,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ChainError {
    #[error("not a JSON CNI configuration")]
    Unreadable(#[source] serde_json::Error),
    #[error("the configuration has no name")]
    NoName,
    #[error("cannot serialise the mesh-cni entry")]
    Entry(#[source] serde_json::Error),
    #[error("the configuration lists no plugin that creates a network")]
    NoNetwork,
    #[error("cniVersion {0:?} is not supported by mesh-cni ({supported})", supported = Version::ALL.map(Version::as_str).join(", "))]
    Version(String),
}

/// The fields of a list that libcni reads; its keys are case-sensitive.
#[derive(Deserialize)]
struct PluginList<'a> {
    #[serde(default)]
    name: String,
    #[serde(rename = "cniVersion", default)]
    version: String,
    #[serde(rename = "cniVersions", default)]
    versions: Vec<String>,
    #[serde(borrow, default)]
    plugins: Option<&'a RawValue>,
}

/// The field of a plugin, in a list or alone, that identifies it.
#[derive(Deserialize)]
struct PluginType {
    #[serde(rename = "type", default)]
    kind: String,
}

/// The fields of a configuration of one plugin that the list made from it needs.
#[derive(Deserialize)]
struct SinglePlugin<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(rename = "cniVersion", borrow, default)]
    version: Option<&'a RawValue>,
}

impl Chain {
    /// Parses a list. Fails for one that no pod could be started with.
    pub(super) fn read(text: &str) -> Result<Self, ChainError> {
        let chain = Self::parse(text)?;
        if chain.network.is_empty() {
            return Err(ChainError::NoName);
        }
        // mesh-cni creates no network, and loopback none that reaches other pods.
        let makes_network = |plugin: &Plugin| !matches!(&*plugin.kind, PLUGIN | "loopback" | "");
        if !chain.plugins.iter().any(makes_network) {
            return Err(ChainError::NoNetwork);
        }
        let is_foreign = |version: &&String| version.parse::<Version>().is_err();
        match chain.versions.iter().find(is_foreign) {
            Some(version) => Err(ChainError::Version(version.clone())),
            None => Ok(chain),
        }
    }

    /// Parses the plugins of any list, usable or not.
    fn parse(text: &str) -> Result<Self, ChainError> {
        let list: PluginList<'_> = serde_json::from_str(text).map_err(ChainError::Unreadable)?;
        let mut plugins = Vec::new();
        if let Some(raw) = list.plugins {
            let entries: Vec<&RawValue> =
                serde_json::from_str(raw.get()).map_err(ChainError::Unreadable)?;
            for entry in entries {
                plugins.push(Plugin::read(text, entry)?);
            }
        }
        // A runtime uses the highest of several versions that it supports, which is unknown here.
        let mut versions = list.versions;
        if versions.is_empty() || !list.version.is_empty() {
            versions.push(list.version);
        }
        Ok(Self {
            network: list.name,
            versions,
            plugins,
        })
    }

    pub(super) fn kinds(&self) -> Vec<String> {
        let kinds = self.plugins.iter().map(|plugin| plugin.kind.clone());
        kinds.collect()
    }

    pub(super) fn is_meshed(&self) -> bool {
        self.plugins.iter().any(Plugin::is_mesh_cni)
    }
}

impl Plugin {
    /// `entry` is a slice of `text`.
    fn read(text: &str, entry: &RawValue) -> Result<Self, ChainError> {
        let slice = entry.get();
        let start = slice.as_ptr() as usize - text.as_ptr() as usize;
        let kind: PluginType = serde_json::from_str(slice).map_err(ChainError::Unreadable)?;
        Ok(Self {
            kind: kind.kind,
            entry: serde_json::from_str(slice).map_err(ChainError::Unreadable)?,
            start,
            end: start + slice.len(),
        })
    }

    fn is_mesh_cni(&self) -> bool {
        self.kind == PLUGIN
    }
}

/// Returns the list with the entry in it; `None` when it already has the entry.
///
/// The entry is appended after the last plugin. If another program appended its plugin after it
/// since, it stays where it is: two programs that both want to be last would rewrite the file
/// indefinitely, and mesh-cni only needs to follow a plugin that creates a network.
pub(super) fn with_entry(text: &str, entry: &impl Serialize) -> Result<Option<String>, ChainError> {
    let entry = serde_json::to_string(entry).map_err(ChainError::Entry)?;
    let chain = Chain::read(text)?;
    let indexes: Vec<usize> = (0..chain.plugins.len())
        .filter(|index| chain.plugins[*index].is_mesh_cni())
        .collect();
    if let [index] = indexes[..]
        && index > 0
    {
        let plugin = &chain.plugins[index];
        if serde_json::from_str::<Value>(&entry).is_ok_and(|entry| entry == plugin.entry) {
            return Ok(None);
        }
        let (before, after) = (&text[..plugin.start], &text[plugin.end..]);
        return Ok(Some(format!("{before}{entry}{after}")));
    }
    let bare = without_entry(text)?.unwrap_or_else(|| text.to_owned());
    let chain = Chain::read(&bare)?;
    let last = chain.plugins.last().ok_or(ChainError::NoNetwork)?;
    // With the spacing of the previous entry, to match the formatting of the list.
    let lead = &bare[..last.start];
    let space = &lead[lead.trim_end().len()..];
    let (before, after) = bare.split_at(last.end);
    Ok(Some(format!("{before},{space}{entry}{after}")))
}

/// Returns the list without any mesh-cni entry; `None` when it has none. Also accepts unusable
/// lists, because an entry must be removed wherever it is.
pub(super) fn without_entry(text: &str) -> Result<Option<String>, ChainError> {
    let mut text = text.to_owned();
    let mut is_changed = false;
    loop {
        let chain = Chain::parse(&text)?;
        let Some(index) = chain.plugins.iter().position(Plugin::is_mesh_cni) else {
            return Ok(is_changed.then_some(text));
        };
        // With the preceding comma, or, for the first entry, the following one.
        let start = match index {
            0 => chain.plugins[0].start,
            _ => chain.plugins[index - 1].end,
        };
        let end = match (index, chain.plugins.get(1)) {
            (0, Some(next)) => next.start,
            _ => chain.plugins[index].end,
        };
        text.replace_range(start..end, "");
        is_changed = true;
    }
}

/// Converts a configuration of one plugin (`*.conf`, `*.json`) to a list of that one, as libcni
/// does when it reads such a file.
pub(super) fn as_list(text: &str) -> Result<String, ChainError> {
    let single: SinglePlugin<'_> = serde_json::from_str(text).map_err(ChainError::Unreadable)?;
    let name = single.name.ok_or(ChainError::NoName)?.get();
    let version = single
        .version
        .ok_or_else(|| ChainError::Version(String::new()))?
        .get();
    let plugin = text.trim();
    Ok(format!(
        "{{\n  \"cniVersion\": {version},\n  \"name\": {name},\n  \"plugins\": [\n    {plugin}\n  ]\n}}\n"
    ))
}

#[cfg(test)]
mod tests;
