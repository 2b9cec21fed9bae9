//! The settings of a node, which `meshctl local up` stores for the daemon, `apply` and `down`.

use std::io;
use std::path::{Path, PathBuf};

use mesh_core::node::Tier;
use serde::{Deserialize, Serialize};

use crate::file::{self, FileError};
use crate::network::Network;
use crate::node_paths::NodePaths;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The directory of manifests.
    pub manifests: PathBuf,
    /// The directory of mesh-agent, mesh-cni, mesh-proxy, mesh-controller and mesh-viz.
    pub bin_dir: PathBuf,
    /// The directories of the CNI plugins.
    pub cni_path: Vec<PathBuf>,
    /// The forced redirection tier; `None` selects the best tier.
    pub tier: Option<Tier>,
    pub network: Network,
    /// Run agent and control plane and inject pods.
    pub mesh: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("read {path}; is the node up?")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "parse {path}, which another version may have written; take the node down and up again"
    )]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(transparent)]
    Write(#[from] FileError),
}

mesh_core::names! {
    /// The programs of the mesh that a node runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Program, ALL {
        Agent = "mesh-agent",
        Cni = "mesh-cni",
        Proxy = "mesh-proxy",
        Controller = "mesh-controller",
        Viz = "mesh-viz",
    }
}

impl Settings {
    pub fn read(paths: &NodePaths) -> Result<Self, SettingsError> {
        let path = paths.settings();
        let text = std::fs::read(&path).map_err(|source| SettingsError::Read {
            path: path.clone(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| SettingsError::Parse { path, source })
    }

    pub fn write(&self, paths: &NodePaths) -> Result<(), SettingsError> {
        let path = paths.settings();
        let text = serde_json::to_vec_pretty(self).map_err(|source| SettingsError::Parse {
            path: path.clone(),
            source,
        })?;
        file::write(&path, &text, 0o600).map_err(file::failed("write", &path))?;
        Ok(())
    }

    pub fn program(&self, program: Program) -> PathBuf {
        self.bin_dir.join(program.as_str())
    }

    /// Returns the paths of missing programs.
    pub fn missing_programs(&self) -> Vec<PathBuf> {
        Program::ALL
            .into_iter()
            .map(|program| self.program(program))
            .filter(|path| !path.is_file())
            .collect()
    }

    /// Returns the search path of CNI plugins, including mesh-cni's.
    pub fn plugin_path(&self) -> Vec<&Path> {
        let others = self.cni_path.iter().map(PathBuf::as_path);
        others.chain([self.bin_dir.as_path()]).collect()
    }
}

/// Returns the networks of these nodes with their names. A node without readable settings has none.
pub fn networks(nodes: &[NodePaths]) -> Vec<(String, Network)> {
    let read = nodes.iter().filter_map(|node| {
        let settings = Settings::read(node).ok()?;
        Some((node.name().to_string(), settings.network))
    });
    read.collect()
}
