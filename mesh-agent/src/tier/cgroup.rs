//! The cgroup that is the parent of the node's pods, where the programs are attached.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// Where kubelet puts pods, by its cgroup driver: `cgroupfs`, `systemd`, and `systemd` on kind, whose kubelet has a slice of its own.
const KUBELET_PARENTS: [&str; 3] = [
    "kubepods",
    "kubepods.slice",
    "kubelet.slice/kubelet-kubepods.slice",
];

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot read /proc/mounts to find cgroup version 2")]
    Mounts(#[source] io::Error),
    #[error(
        "cgroup version 2 is not mounted on this node, and the eBPF programs are attached to its directories"
    )]
    NotMounted,
    #[error(
        "{path} is no directory of cgroup version 2; name the parent of the node's pods with --cgroup-root"
    )]
    NotCgroup2 { path: PathBuf },
    #[error(
        "no cgroup of kubelet is below {mounts} ({tried}); name the parent of the node's pods with --cgroup-root"
    )]
    NoKubelet { mounts: String, tried: String },
}

/// The directory that was given, if it is one, or kubelet's.
pub(super) fn pods_parent(given: Option<&Path>) -> Result<PathBuf, CgroupError> {
    if let Some(path) = given {
        return match is_cgroup2(path) {
            true => Ok(path.to_owned()),
            false => Err(CgroupError::NotCgroup2 {
                path: path.to_owned(),
            }),
        };
    }
    let mounts = fs::read_to_string("/proc/mounts").map_err(CgroupError::Mounts)?;
    find(&mounts, &|path| is_cgroup2(path))
}

/// Looks below every cgroup2 mount: beside the old controllers it may be anywhere.
fn find(mounts: &str, is_there: &dyn Fn(&Path) -> bool) -> Result<PathBuf, CgroupError> {
    let mounts: Vec<&str> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then_some(path)
        })
        .collect();
    if mounts.is_empty() {
        return Err(CgroupError::NotMounted);
    }
    let candidates = mounts
        .iter()
        .flat_map(|mount| KUBELET_PARENTS.map(|parent| Path::new(mount).join(parent)));
    let mut candidates = candidates.filter(|path| is_there(path));
    candidates.next().ok_or_else(|| CgroupError::NoKubelet {
        mounts: mounts.join(", "),
        tried: KUBELET_PARENTS.join(", "),
    })
}

fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn finds_kubelets_directory_whatever_its_driver() {
        let check = |mounts: &str, there: &str| {
            let found = find(mounts, &|path| path == Path::new(there)).unwrap();
            assert_eq!(found, Path::new(there));
        };
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        check(unified, "/sys/fs/cgroup/kubepods");
        check(unified, "/sys/fs/cgroup/kubepods.slice");
        check(
            unified,
            "/sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice",
        );
        check(HYBRID, "/sys/fs/cgroup/unified/kubepods");
    }

    #[test]
    fn says_what_is_missing() {
        let error = find("proc /proc proc rw 0 0\n", &|_| true).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cgroup version 2 is not mounted")
        );
        let error = find(HYBRID, &|_| false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no cgroup of kubelet is below /sys/fs/cgroup/unified (kubepods, kubepods.slice, kubelet.slice/kubelet-kubepods.slice); \
             name the parent of the node's pods with --cgroup-root"
        );
    }
}
