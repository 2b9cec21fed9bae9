//! Where a running pod is: its network namespace and its sandbox, found from outside by the pod's
//! UID. For pods that were there before the plugin was; called by the task that repairs them
//! (`kubernetes::repair`).
//!
//! The container runtime is not asked: each has another interface. A kubelet with either cgroup
//! driver, on either version of cgroups, below whatever parent, puts the pod's UID into the path of
//! its processes' cgroups, and `/proc` (the node's: the agent needs `hostPID`) tells that path.
//! From the cgroup namespace of the agent's own container the path looks different, but not its
//! end.

mod cgroup_path;
mod choice;
mod processes;

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::node::{self, NamespaceError};

pub use choice::NotYet;

use choice::Candidate;
use processes::Process;

/// A pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// A name that lives as long as the namespace, if it has one; runtimes give it one below
    /// `/run/netns`.
    pub netns: PathBuf,
    pub container_id: String,
}

/// Which namespace: device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity(u64, u64);

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot list the node's processes")]
    Processes(#[source] io::Error),
    #[error("cannot look at the namespaces of the pod's process {pid} (it takes CAP_SYS_PTRACE)")]
    Process {
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
}

/// Where to look; other places in tests.
#[derive(Clone, Debug)]
pub struct Places {
    /// The node's processes.
    pub processes: PathBuf,
    /// Where runtimes give namespaces their names.
    pub namespaces: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            processes: "/proc".into(),
            namespaces: "/run/netns".into(),
        }
    }
}

impl Places {
    /// Finds the pod's sandbox. `addresses` are those that the API server knows, if it knows them
    /// yet.
    pub fn find(
        &self,
        uid: &str,
        addresses: &[IpAddr],
    ) -> Result<Result<Sandbox, NotYet>, SandboxError> {
        let own = identity(Path::new("/proc/self/ns/net")).map_err(SandboxError::Processes)?;
        let processes = processes::of_pod(&self.processes, uid).map_err(SandboxError::Processes)?;
        let mut candidates: Vec<Candidate> = Vec::new();
        for process in processes {
            // A process that is being made for the pod, or one that watches over a container, is
            // still in the node's namespace.
            let netns = process.netns(&self.processes);
            let identity = match identity(&netns) {
                Ok(identity) if identity == own => continue,
                Ok(identity) => identity,
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                    let pid = process.pid;
                    return Err(SandboxError::Process { pid, source });
                }
                // It has ended.
                Err(_) => continue,
            };
            match candidates
                .iter_mut()
                .find(|known| known.identity == identity)
            {
                Some(known) => known.add(process),
                None => candidates.push(Candidate {
                    addresses: node::addresses(&netns)?,
                    identity,
                    oldest: process,
                }),
            }
        }
        Ok(choice::choose(candidates, addresses).map(|chosen| self.sandbox(&chosen, uid)))
    }

    fn sandbox(&self, chosen: &Candidate, uid: &str) -> Sandbox {
        let Process { container_id, .. } = &chosen.oldest;
        Sandbox {
            netns: self
                .name_of(chosen.identity)
                .unwrap_or_else(|| chosen.oldest.netns(&self.processes)),
            container_id: container_id.clone().unwrap_or_else(|| uid.to_owned()),
        }
    }

    fn name_of(&self, wanted: Identity) -> Option<PathBuf> {
        let names = fs::read_dir(&self.namespaces).ok()?;
        let mut paths = names.filter_map(|name| Some(name.ok()?.path()));
        paths.find(|path| identity(path).is_ok_and(|found| found == wanted))
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::metadata(path)?;
    Ok(Identity(metadata.dev(), metadata.ino()))
}
