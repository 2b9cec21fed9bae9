//! The requirements of a node on the machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command;
use crate::file::{self, FileError};

#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(
        "a local node creates namespaces, cgroups and network devices and requires root; try: sudo meshctl local …"
    )]
    NotRoot,
    #[error(
        "no cgroup2 file system is mounted; mount one with: mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    )]
    NoCgroup2,
    #[error(
        "this kernel does not support overlayfs, which containers require for their file systems"
    )]
    NoOverlay,
    #[error("{program} is not installed; install it with: apt-get install {package}")]
    NoProgram {
        program: &'static str,
        package: &'static str,
    },
    #[error(transparent)]
    Read(#[from] FileError),
}

/// Checks the requirements and returns the first that is not met.
pub fn check() -> Result<(), HostError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(HostError::NotRoot);
    }
    cgroup2()?;
    let systems = read(Path::new("/proc/filesystems"))?;
    if !systems.lines().any(|line| line.ends_with("\toverlay")) {
        return Err(HostError::NoOverlay);
    }
    for (program, package) in [
        ("ip", "iproute2"),
        ("nft", "nftables"),
        ("dnsmasq", "dnsmasq-base"),
    ] {
        if !command::exists(program) {
            return Err(HostError::NoProgram { program, package });
        }
    }
    Ok(())
}

/// Returns the mount point of cgroup2, which is not `/sys/fs/cgroup` if version 1 controllers are
/// mounted.
pub fn cgroup2() -> Result<PathBuf, HostError> {
    let mounts = read(Path::new("/proc/mounts"))?;
    cgroup2_in(&mounts).ok_or(HostError::NoCgroup2)
}

/// Returns whether IPv6 is enabled on the machine.
pub fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6")
        .is_ok_and(|text| text.trim() == "0")
}

/// Returns the name of the host.
pub fn name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "localhost".to_owned())
}

fn read(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(file::failed("read", path))
}

fn cgroup2_in(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, target, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(target))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_alongside_version_1() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let unified = Some(Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(cgroup2_in(mounts).as_deref(), unified);
        assert_eq!(cgroup2_in("proc /proc proc rw 0 0"), None);
    }
}
