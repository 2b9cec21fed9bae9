//! Finds a running pod's network namespace and sandbox by the pod's UID. For pods that started
//! before the plugin was installed; called by the task that enrols them in place
//! (`kubernetes::in_place`).
//!
//! It does not query the container runtime, since each has another interface. The kubelet, with
//! either cgroup driver, on either version of cgroups and below any parent, puts the pod's UID into
//! the cgroup path of the pod's processes, and `/proc` (the node's: the agent needs `hostPID`)
//! shows that path. In the cgroup namespace of the agent's own container the path has another
//! beginning, but the same end.

mod cgroup_path;
mod choice;
mod processes;

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::node::{self, NamespaceError};
use choice::Candidate;
use processes::Process;

pub use choice::SandboxPending;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// A path that lives as long as the namespace, if it has one; runtimes bind-mount one below
    /// `/run/netns`.
    pub netns: PathBuf,
    pub container_id: String,
}

/// Identifies a namespace by device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NetnsId(u64, u64);

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("cannot list the node's processes")]
    Processes(#[source] io::Error),
    #[error("cannot inspect the namespaces of the pod's process {pid} (it takes CAP_SYS_PTRACE)")]
    Process { pid: u32, source: io::Error },
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
}

/// The directories to search; tests use others.
#[derive(Clone, Debug)]
pub struct SandboxFinder {
    pub proc_dir: PathBuf,
    /// Where runtimes bind-mount namespaces.
    pub netns_dir: PathBuf,
}

impl Default for SandboxFinder {
    fn default() -> Self {
        Self {
            proc_dir: "/proc".into(),
            netns_dir: "/run/netns".into(),
        }
    }
}

impl SandboxFinder {
    /// Finds the pod's sandbox. `addresses` are those in the pod's status; none is found without.
    pub fn find(
        &self,
        uid: &str,
        addresses: &[IpAddr],
    ) -> Result<Result<Sandbox, SandboxPending>, SandboxError> {
        let own = netns_id(Path::new("/proc/self/ns/net")).map_err(SandboxError::Processes)?;
        let processes = processes::of_pod(&self.proc_dir, uid).map_err(SandboxError::Processes)?;
        let mut candidates: Vec<Candidate> = Vec::new();
        for process in processes {
            // A process that is being created for the pod, or that supervises a container, is still
            // in the node's namespace.
            let netns = process.netns(&self.proc_dir);
            let netns_id = match netns_id(&netns) {
                Ok(netns_id) if netns_id == own => continue,
                Ok(netns_id) => netns_id,
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                    let pid = process.pid;
                    return Err(SandboxError::Process { pid, source });
                }
                // The process has exited.
                Err(_) => continue,
            };
            match candidates
                .iter_mut()
                .find(|known| known.netns_id == netns_id)
            {
                Some(known) => known.add(process),
                None => candidates.push(Candidate {
                    addresses: node::addresses(&netns)?,
                    netns_id,
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
                .named_path(chosen.netns_id)
                .unwrap_or_else(|| chosen.oldest.netns(&self.proc_dir)),
            container_id: container_id.clone().unwrap_or_else(|| uid.to_owned()),
        }
    }

    fn named_path(&self, id: NetnsId) -> Option<PathBuf> {
        let names = fs::read_dir(&self.netns_dir).ok()?;
        let mut paths = names.filter_map(|name| Some(name.ok()?.path()));
        paths.find(|path| netns_id(path).is_ok_and(|found| found == id))
    }
}

fn netns_id(path: &Path) -> io::Result<NetnsId> {
    let metadata = fs::metadata(path)?;
    Ok(NetnsId(metadata.dev(), metadata.ino()))
}
