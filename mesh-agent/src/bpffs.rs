//! The node's bpffs, for an agent in a container. Pins must outlive the container, so they need a bpffs of the node; systemd mounts one at boot, and where
//! nobody did, the daemon does it here before it tries the eBPF tiers.
//!
//! Kubernetes lets only privileged containers hand a mount to the node (`Bidirectional`). So the mount is made where the node's first process is, and comes
//! back into the container by propagation.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

/// The mount namespace of the node, if the container shares the node's process ids.
const NODE: &str = "/proc/1/ns/mnt";
const OWN: &str = "/proc/self/ns/mnt";

#[derive(Debug, thiserror::Error)]
pub enum BpffsError {
    #[error("cannot mount a bpffs on the node's {path}")]
    Mount {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "a bpffs is mounted on the node's {path} and this container does not see it; mount that directory with mountPropagation: HostToContainer"
    )]
    Hidden { path: PathBuf },
}

/// Sees to it that `pin_dir` is, or will be, on a bpffs of the node. Without a container there is nothing to do: loading the programs mounts one.
pub fn ensure_on_node(pin_dir: &Path) -> Result<(), BpffsError> {
    if is_on_bpffs(pin_dir) || !is_in_container() {
        return Ok(());
    }
    let path = pin_dir.parent().unwrap_or(pin_dir);
    mount_on_node(path).map_err(|source| BpffsError::Mount {
        path: path.to_owned(),
        source,
    })?;
    match is_on_bpffs(pin_dir) {
        true => Ok(()),
        false => Err(BpffsError::Hidden {
            path: path.to_owned(),
        }),
    }
}

fn is_on_bpffs(path: &Path) -> bool {
    let existing = path.ancestors().find(|path| path.exists());
    existing
        .and_then(|path| statfs(path).ok())
        .is_some_and(|status| status.filesystem_type() == BPF_FS_MAGIC)
}

/// Not being able to look counts as no: then there is no other namespace that could be entered.
fn is_in_container() -> bool {
    let inode = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let (node, own) = (inode(NODE), inode(OWN));
    node.is_some() && node != own
}

/// On a thread of its own, which then ends in the node's namespace. It must first give up the root and working directory that it shares with the others.
fn mount_on_node(path: &Path) -> io::Result<()> {
    let work = || -> io::Result<()> {
        let node = File::open(NODE)?;
        unshare(CloneFlags::CLONE_FS)?;
        setns(node, CloneFlags::CLONE_NEWNS)?;
        fs::create_dir_all(path)?;
        if is_on_bpffs(path) {
            return Ok(());
        }
        mount(
            Some("bpf"),
            path,
            Some("bpf"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
            Some("mode=700"),
        )?;
        Ok(())
    };
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread that mounts panicked")))
}
