//! One local node: its name and where each of its things lives.
//!
//! Everything a node leaves on the machine is found from its name alone (state folder, cgroup,
//! pins, nftables table, network device), so that `down` and the next `up` can clear after a crash
//! without asking anybody.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Below it each node has a folder of its name.
pub const STATE_ROOT: &str = "/run/mesh-local";
/// The eBPF file system; the agent mounts it where it is missing.
const BPF_ROOT: &str = "/sys/fs/bpf";

/// The name of a node: what `--name` says, or the last part of the folder's path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a node: 1 to 24 lower-case letters, digits and '-', beginning and ending with a letter or digit; give another with --name"
)]
pub struct InvalidName(String);

/// The places of one node.
#[derive(Clone, Debug)]
pub struct Instance {
    name: Name,
    state: PathBuf,
}

/// Which node a command means when none is named.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("no local node is up; start one with: meshctl local up DIR")]
    None,
    #[error("several local nodes are up ({0}); choose one with --local NAME")]
    Several(String),
    #[error("read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Name {
    /// The name of the node that runs a folder's manifests when none is given.
    pub fn of_folder(folder: &Path) -> Result<Self, InvalidName> {
        let last = folder
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
        let good = (1..=24).contains(&text.len())
            && text.chars().all(|c| plain(c) || c == '-')
            && text.starts_with(plain)
            && text.ends_with(plain);
        if good {
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

impl Instance {
    pub fn new(name: Name) -> Self {
        let state = Path::new(STATE_ROOT).join(name.as_str());
        Self { name, state }
    }

    /// Every node that has a state folder, running or left behind.
    pub fn all() -> Result<Vec<Self>, FindError> {
        let read_error = |source| FindError::Read {
            path: STATE_ROOT.into(),
            source,
        };
        let entries = match std::fs::read_dir(STATE_ROOT) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(read_error(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(read_error)?;
            if let Ok(name) = entry.file_name().to_string_lossy().parse() {
                found.push(Self::new(name));
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The node that is named, or the only one.
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

    /// Where everything that can be a file is.
    pub fn state(&self) -> &Path {
        &self.state
    }

    pub fn settings(&self) -> PathBuf {
        self.state.join("settings.json")
    }

    /// The daemon listens here for the commands of `meshctl local`.
    pub fn control_socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// Where a daemon that cannot start says why.
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

    /// The objects that the node writes for the controllers.
    pub fn objects(&self) -> PathBuf {
        self.state.join("objects")
    }

    pub fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }

    /// Volumes, process descriptions and CNI results of one pod.
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

    /// The state of the address plugin.
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

    /// The node's cgroup: `node` holds the daemon and its helpers, `pods` the pods.
    pub fn cgroup(&self, cgroup2: &Path) -> PathBuf {
        cgroup2.join("mesh-local").join(self.name.as_str())
    }

    /// The nftables table of the node's Services.
    pub fn nft_table(&self) -> String {
        format!("mesh_local_{}", self.name.as_str().replace('-', "_"))
    }

    /// The name of the CNI network.
    pub fn network_name(&self) -> String {
        format!("mesh-local-{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let of = |folder: &str| Name::of_folder(Path::new(folder)).map(|name| name.0);
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
