//! The name of a local node and the paths of its files and kernel objects. All paths and names are
//! derived from the name of the node (state directory, cgroup, pins, nftables table), so that
//! `down` and the next `up` can clean up after a crash.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use crate::file::{self, FileError};

/// The parent of the state directories of all nodes.
pub const STATE_ROOT: &str = "/run/mesh-local";
/// The BPF file system; the agent mounts it if necessary.
const BPF_ROOT: &str = "/sys/fs/bpf";

/// The name of a node: the value of `--name`, or the name of its directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid node name {0:?}: expected 1 to 24 lower-case letters, digits and '-', beginning and ending with a letter or digit; set another with --name"
)]
pub struct InvalidName(String);

/// The paths of a node.
#[derive(Clone, Debug)]
pub struct NodePaths {
    name: Name,
    state: PathBuf,
}

/// An error of finding the node of a command without a name.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("no local node is up; start one with: meshctl local up DIR")]
    None,
    #[error("several local nodes are up ({0}); select one with --local NAME")]
    Several(String),
    #[error(transparent)]
    Read(#[from] FileError),
}

impl Name {
    /// Returns the default name of the node that runs the manifests of a directory.
    pub fn from_directory(directory: &Path) -> Result<Self, InvalidName> {
        let last = directory
            .file_name()
            .map(|name| name.to_string_lossy().to_lowercase())
            .unwrap_or_default();
        let plain: String = last
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        plain.trim_matches('-').parse()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_valid = (1..=24).contains(&text.len())
            && text.chars().all(|c| plain(c) || c == '-')
            && text.starts_with(plain)
            && text.ends_with(plain);
        if is_valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName(text.to_owned()))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NodePaths {
    pub fn new(name: Name) -> Self {
        let state = Path::new(STATE_ROOT).join(name.as_str());
        Self { name, state }
    }

    /// Returns all nodes with a state directory, running or crashed.
    pub fn all() -> Result<Vec<Self>, FindError> {
        let read_error = file::failed("read", Path::new(STATE_ROOT));
        let entries = match std::fs::read_dir(STATE_ROOT) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(read_error(error).into()),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(&read_error)?;
            if let Ok(name) = entry.file_name().to_string_lossy().parse() {
                found.push(Self::new(name));
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Returns the named node, or the only one.
    pub fn find(name: Option<Name>) -> Result<Self, FindError> {
        if let Some(name) = name {
            return Ok(Self::new(name));
        }
        let mut all = Self::all()?;
        match all.len() {
            0 => Err(FindError::None),
            1 => Ok(all.remove(0)),
            _ => {
                let names: Vec<&str> = all.iter().map(|node| node.name.as_str()).collect();
                Err(FindError::Several(names.join(", ")))
            }
        }
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    pub fn settings(&self) -> PathBuf {
        self.state.join("settings.json")
    }

    /// Returns the daemon's socket for requests of `meshctl local`.
    pub fn control_socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// Returns the file for the error of a daemon that cannot start.
    pub fn failure(&self) -> PathBuf {
        self.state.join("failure")
    }

    pub fn daemon_log(&self) -> PathBuf {
        self.state.join("logs/node.log")
    }

    pub fn agent_log(&self) -> PathBuf {
        self.state.join("logs/mesh-agent.log")
    }

    pub fn dns_log(&self) -> PathBuf {
        self.state.join("logs/dnsmasq.log")
    }

    pub fn container_log(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        let pod = format!("{namespace}_{pod}");
        self.state
            .join("logs/pods")
            .join(pod)
            .join(format!("{container}.log"))
    }

    /// Returns the directory of the objects that the node writes for the controllers.
    pub fn objects(&self) -> PathBuf {
        self.state.join("objects")
    }

    pub fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }

    /// Returns the directory of a pod, with volumes, tasks and CNI inputs.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    pub fn pods(&self) -> PathBuf {
        self.state.join("pods")
    }

    pub fn netns(&self, namespace: &str, pod: &str) -> PathBuf {
        self.netns_dir().join(format!("{namespace}_{pod}"))
    }

    pub fn netns_dir(&self) -> PathBuf {
        self.state.join("netns")
    }

    /// Returns the state directory of the IPAM plugin.
    pub fn ipam(&self) -> PathBuf {
        self.state.join("ipam")
    }

    pub fn dns(&self) -> PathBuf {
        self.state.join("dns")
    }

    pub fn agent_state(&self) -> PathBuf {
        self.state.join("agent")
    }

    pub fn agent_socket(&self) -> PathBuf {
        self.state.join("agent/agent.sock")
    }

    pub fn pin_dir(&self) -> PathBuf {
        Path::new(BPF_ROOT)
            .join("mesh-local")
            .join(self.name.as_str())
    }

    /// Returns the cgroup of the node. Its child `node` has the daemon and its helpers, `pods` has
    /// the pods.
    pub fn cgroup(&self, cgroup2: &Path) -> PathBuf {
        cgroup2.join("mesh-local").join(self.name.as_str())
    }

    /// Returns the name of the nftables table of Services.
    pub fn nft_table(&self) -> String {
        format!("mesh_local_{}", self.name.as_str().replace('-', "_"))
    }

    /// Returns the name of the CNI network.
    pub fn network_name(&self) -> String {
        format!("mesh-local-{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_derived_and_validated() {
        let of = |directory: &str| Name::from_directory(Path::new(directory)).map(|name| name.0);
        assert_eq!(of("/a/examples/Demo"), Ok("demo".into()));
        assert_eq!(of("/a/my_app.v1/"), Ok("my-app-v1".into()));
        assert!(of("/").is_err());
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a/b",
            "..",
            "abcdefghijklmnopqrstuvwxy",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }
}
