//! Where a local node keeps things. One place names every path, so that a crash can be cleared from names alone, without anyone's memory.

use std::path::{Path, PathBuf};

/// Below this directory every local node of the machine has a directory of its own, named after it. It is a tmpfs on every distribution: a reboot clears it.
pub const ROOT: &str = "/run/mesh-local";

/// The files of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    name: String,
    dir: PathBuf,
}

impl Paths {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            dir: Path::new(ROOT).join(name),
        }
    }

    /// The nodes that have files on this machine, running or crashed, in alphabetical order.
    pub fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(ROOT).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.iter().map(|name| Self::new(name)).collect()
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The node program's own socket: status, apply, down.
    pub fn control_socket(&self) -> PathBuf {
        self.dir.join("node.sock")
    }

    /// The node's objects as YAML, one file each: Pods with status, Services with addresses, EndpointSlices.
    pub fn objects(&self) -> PathBuf {
        self.dir.join("objects")
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.dir.join("agent.sock")
    }

    pub fn agent_state(&self) -> PathBuf {
        self.dir.join("agent")
    }

    /// Below the bpf file system, which outlives the node's own directory.
    pub fn pins(&self) -> PathBuf {
        Path::new("/sys/fs/bpf/mesh-local").join(&self.name)
    }

    pub fn trust_anchor(&self) -> PathBuf {
        self.dir.join("identity/ca.crt")
    }

    pub fn issuer_certificate(&self) -> PathBuf {
        self.dir.join("identity/issuer.crt")
    }

    pub fn issuer_key(&self) -> PathBuf {
        self.dir.join("identity/issuer.key")
    }

    /// Signs the pods' service account tokens.
    pub fn token_key(&self) -> PathBuf {
        self.dir.join("identity/token.key")
    }

    /// Verifies the pods' service account tokens.
    pub fn token_public_key(&self) -> PathBuf {
        self.dir.join("identity/token.pub")
    }

    pub fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }
}
