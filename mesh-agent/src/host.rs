//! The node around the agent's container. A container has namespaces of its own, and some things
//! are to be seen, or done, as the node sees them. Called at the start of the daemon; without a
//! container there is nothing to do.
//!
//! * **cgroups**: `/proc/PID/cgroup` is relative to the reader's cgroup namespace, and fits the
//!   node's cgroup mount only in the node's.
//! * **bpffs**: pins must outlive the container, so they need a bpffs of the node. systemd mounts
//!   one at boot; where nobody did, it is mounted here. Kubernetes lets only privileged containers
//!   hand a mount to the node (`Bidirectional`), so it is mounted where the node's first process
//!   is, and comes back into the container by propagation.

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

/// Of the node, if the container shares its process ids; else of the container, which changes
/// nothing.
const NODES_MOUNTS: &str = "/proc/1/ns/mnt";
const NODES_CGROUPS: &str = "/proc/1/ns/cgroup";
const OWN_MOUNTS: &str = "/proc/self/ns/mnt";
const OWN_CGROUPS: &str = "/proc/self/ns/cgroup";

/// The kernel makes this directory of sysfs for a bpffs; systemd mounts one there.
const SYSTEM_BPFFS: &str = "/sys/fs/bpf";

#[derive(Debug, thiserror::Error)]
pub enum BpffsError {
    #[error(
        "there is no bpffs on the node's {path} and none can be mounted there (it takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE)"
    )]
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

/// Lets this thread, and all that it starts, see cgroups as the node does. To be called while there
/// is one thread.
pub fn enter_cgroup_namespace() -> io::Result<()> {
    if is_own(NODES_CGROUPS, OWN_CGROUPS) {
        return Ok(());
    }
    Ok(setns(
        File::open(NODES_CGROUPS)?,
        CloneFlags::CLONE_NEWCGROUP,
    )?)
}

/// Sees to it that `pin_dir` is, or will be, on a bpffs of the node. Without a container there is
/// nothing to do: loading the programs mounts one.
pub fn ensure_bpffs(pin_dir: &Path) -> Result<(), BpffsError> {
    if is_on_bpffs(pin_dir) || is_own(NODES_MOUNTS, OWN_MOUNTS) {
        return Ok(());
    }
    let path = bpffs_of(pin_dir);
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

/// Where the bpffs for `pin_dir` is mounted when there is none: on the system's own place, below
/// which no directory can be made before; anywhere else on the directory above.
pub fn bpffs_of(pin_dir: &Path) -> &Path {
    let system = Path::new(SYSTEM_BPFFS);
    if pin_dir.starts_with(system) {
        return system;
    }
    pin_dir.parent().unwrap_or(pin_dir)
}

fn is_on_bpffs(path: &Path) -> bool {
    let existing = path.ancestors().find(|path| path.exists());
    existing
        .and_then(|path| statfs(path).ok())
        .is_some_and(|status| status.filesystem_type() == BPF_FS_MAGIC)
}

/// Not being able to look counts as yes: then there is no other namespace that could be entered.
fn is_own(nodes: &str, own: &str) -> bool {
    let inode = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let nodes = inode(nodes);
    nodes.is_none() || nodes == inode(own)
}

/// On a thread of its own, which then ends in the node's namespace. It must first give up the root
/// and working directory that it shares with the others.
fn mount_on_node(path: &Path) -> io::Result<()> {
    let work = || -> io::Result<()> {
        let node = File::open(NODES_MOUNTS)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_systems_place_only_that_place_can_be_mounted_on() {
        for (pin_dir, expected) in [
            ("/sys/fs/bpf/mesh", "/sys/fs/bpf"),
            ("/sys/fs/bpf/mesh-local/demo-selftest", "/sys/fs/bpf"),
            ("/run/mesh/bpf/pins", "/run/mesh/bpf"),
            ("/sys/fs/bpfx/pins", "/sys/fs/bpfx"),
        ] {
            assert_eq!(bpffs_of(Path::new(pin_dir)), Path::new(expected));
        }
    }
}
