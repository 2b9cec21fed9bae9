//! The node outside of the agent's container, whose namespaces hide some of it. Called at the start
//! of the daemon; does nothing when the agent runs without a container.
//!
//! * **cgroups**: `/proc/PID/cgroup` is relative to the reader's cgroup namespace, and matches the
//!   node's cgroup mount only in the node's.
//! * **bpffs**: pins must outlive the container, so they need a bpffs of the node. systemd mounts
//!   one at boot; where none is mounted, this module mounts it. Kubernetes lets only privileged
//!   containers propagate a mount to the node (`Bidirectional`), so the module mounts it in the
//!   mount namespace of the node's first process, and it propagates back into the container.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{io, thread};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

/// The node's, if the container shares the node's PID namespace; otherwise the container's own, and
/// entering it has no effect.
const NODES_MOUNTS: &str = "/proc/1/ns/mnt";
const NODES_CGROUPS: &str = "/proc/1/ns/cgroup";
const OWN_MOUNTS: &str = "/proc/self/ns/mnt";
const OWN_CGROUPS: &str = "/proc/self/ns/cgroup";

/// The kernel creates this directory in sysfs for a bpffs; systemd mounts one there.
const SYSTEM_BPFFS: &str = "/sys/fs/bpf";

#[derive(Debug, thiserror::Error)]
pub enum BpffsError {
    #[error(
        "no bpffs is mounted on the node's {path} and none can be mounted there (it takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE)"
    )]
    Mount { path: PathBuf, source: io::Error },
    #[error(
        "a bpffs is mounted on the node's {path}, but this container does not see it; mount that directory with mountPropagation: HostToContainer"
    )]
    Hidden { path: PathBuf },
}

/// Moves this thread, and all that it starts, into the node's cgroup namespace. Must be called
/// while the process has one thread.
pub fn enter_cgroup_namespace() -> io::Result<()> {
    if is_own(NODES_CGROUPS, OWN_CGROUPS) {
        return Ok(());
    }
    Ok(setns(
        File::open(NODES_CGROUPS)?,
        CloneFlags::CLONE_NEWCGROUP,
    )?)
}

/// Ensures that `pin_dir` is, or will be, on a bpffs of the node. Outside of a container it does
/// nothing: loading the programs mounts one.
pub fn ensure_bpffs(pin_dir: &Path) -> Result<(), BpffsError> {
    if is_on_bpffs(pin_dir) || is_own(NODES_MOUNTS, OWN_MOUNTS) {
        return Ok(());
    }
    let path = bpffs_of(pin_dir);
    mount_on_node(path).map_err(|source| BpffsError::Mount {
        path: path.to_owned(),
        source,
    })?;
    if is_on_bpffs(pin_dir) {
        Ok(())
    } else {
        Err(BpffsError::Hidden {
            path: path.to_owned(),
        })
    }
}

/// Returns where to mount a bpffs for `pin_dir` when none is mounted: `/sys/fs/bpf` for paths below
/// it, since sysfs allows no new directories there; otherwise the parent directory.
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

/// Returns true also when the inode cannot be read: then no other namespace can be entered.
fn is_own(nodes: &str, own: &str) -> bool {
    let inode = |path: &str| fs::metadata(path).map(|metadata| metadata.ino()).ok();
    let nodes = inode(nodes);
    nodes.is_none() || nodes == inode(own)
}

/// Mounts on a new thread, which ends in the node's mount namespace. `setns` requires that the
/// thread does not share its root and working directory with others.
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
        .unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpffs_mount_point_is_sys_fs_bpf_or_parent_directory() {
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
