//! Finds the cgroup that is the parent of the node's pods. The programs are attached to it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// The kubelet's parents of pods, by its cgroup driver: `cgroupfs`, `systemd`, and `systemd` on
/// kind, whose kubelet has its own slice.
const KUBELET_PARENTS: [&str; 3] = [
    "kubepods",
    "kubepods.slice",
    "kubelet.slice/kubelet-kubepods.slice",
];
/// A kubelet with a configured cgroup root creates them below that; roots have one or two levels
/// (`a.slice/a-b.slice`). Deeper ones belong to kubelets of nodes that run as containers on this
/// one.
const DEPTH: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot read /proc/mounts to find cgroup version 2")]
    Mounts(#[source] io::Error),
    #[error(
        "cgroup version 2 is not mounted on this node, and the eBPF programs are attached to its directories"
    )]
    NotMounted,
    #[error(
        "{path} is not a directory of cgroup version 2; name the parent of the node's pods with --cgroup-root"
    )]
    NotCgroup2 { path: PathBuf },
    #[error(
        "no cgroup of kubelet is below {mounts} ({tried}); name the parent of the node's pods with --cgroup-root"
    )]
    NoKubelet { mounts: String, tried: String },
    #[error(
        "several directories could be the parent of the node's pods ({0}); name the right one with --cgroup-root"
    )]
    Several(String),
}

/// Returns the configured directory, if it is valid, or kubelet's.
pub(super) fn pods_parent(configured: Option<&Path>) -> Result<PathBuf, CgroupError> {
    if let Some(path) = configured {
        return if is_cgroup2(path) {
            Ok(path.to_owned())
        } else {
            Err(CgroupError::NotCgroup2 {
                path: path.to_owned(),
            })
        };
    }
    let mounts = fs::read_to_string("/proc/mounts").map_err(CgroupError::Mounts)?;
    find(&mounts, &|path| is_cgroup2(path), &directories)
}

/// Returns where cgroup version 2 is mounted, without mounts that another one covers.
pub fn cgroup2_mount() -> Result<PathBuf, CgroupError> {
    let text = fs::read_to_string("/proc/mounts").map_err(CgroupError::Mounts)?;
    let mut mounts = mounts(&text).map(PathBuf::from);
    let mount = mounts.find(|path| is_cgroup2(path));
    mount.ok_or(CgroupError::NotMounted)
}

/// Returns the mount points of cgroup version 2 in a `/proc/mounts`.
fn mounts(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then_some(path)
    })
}

/// Searches below every cgroup2 mount, which has no fixed place when the version 1 controllers are
/// mounted too: first the usual directories, then by name.
fn find(
    mounts: &str,
    exists: &dyn Fn(&Path) -> bool,
    directories: &dyn Fn(&Path) -> Vec<PathBuf>,
) -> Result<PathBuf, CgroupError> {
    let mounts: Vec<&str> = self::mounts(mounts).collect();
    if mounts.is_empty() {
        return Err(CgroupError::NotMounted);
    }
    let candidates = mounts
        .iter()
        .flat_map(|mount| KUBELET_PARENTS.map(|parent| Path::new(mount).join(parent)));
    let mut candidates = candidates.filter(|path| exists(path));
    if let Some(usual) = candidates.next() {
        return Ok(usual);
    }
    let mut found = Vec::new();
    let mut level: Vec<PathBuf> = mounts.iter().map(PathBuf::from).collect();
    for _ in 0..DEPTH {
        level = level.iter().flat_map(|path| directories(path)).collect();
        found.extend(level.iter().filter(|path| is_parent(path)).cloned());
    }
    match &found[..] {
        [only] => Ok(only.clone()),
        [] => Err(CgroupError::NoKubelet {
            mounts: mounts.join(", "),
            tried: KUBELET_PARENTS.join(", "),
        }),
        _ => {
            let found: Vec<String> = found
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            Err(CgroupError::Several(found.join(", ")))
        }
    }
}

/// Matches `kubepods` (cgroupfs driver) or `<parents>-kubepods.slice` (systemd driver).
fn is_parent(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    matches!(&*name, "kubepods" | "kubepods.slice") || name.ends_with("-kubepods.slice")
}

/// Returns the subdirectories; none when the directory cannot be listed.
fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
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
    fn kubelet_parent_is_found_for_every_driver() {
        let check = |mounts: &str, there: &str| {
            let found = find(mounts, &|path| path == Path::new(there), &|_| vec![]).unwrap();
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
    fn errors_name_what_is_missing() {
        let error = find("proc /proc proc rw 0 0\n", &|_| true, &|_| vec![]).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("cgroup version 2 is not mounted"));
        let error = find(HYBRID, &|_| false, &|_| vec![]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no cgroup of kubelet is below /sys/fs/cgroup/unified (kubepods, kubepods.slice, kubelet.slice/kubelet-kubepods.slice); \
             name the parent of the node's pods with --cgroup-root"
        );
    }

    #[test]
    fn parent_below_configured_cgroup_root_is_found_by_name() {
        let tree = |paths: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            for path in paths {
                fs::create_dir_all(dir.path().join(path)).unwrap();
            }
            dir
        };
        let find = |dir: &Path| {
            let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", dir.display());
            find(&mounts, &|_| false, &directories).map_err(|error| error.to_string())
        };
        let check = |path: &str| {
            let dir = tree(&[path, "system.slice/x.service", "kubepods-like"]);
            assert_eq!(find(dir.path()), Ok(dir.path().join(path)));
        };
        check("mine/kubepods");
        check("mine.slice/mine-kubepods.slice");
        check("a.slice/a-b.slice/a-b-kubepods.slice");
        let deep = tree(&["docker/id/kubelet/kubepods"]);
        let error = find(deep.path()).unwrap_err();
        assert!(error.starts_with("no cgroup of kubelet"));
        let two = tree(&["a/kubepods", "b/kubepods"]);
        let error = find(two.path()).unwrap_err();
        assert!(error.starts_with("several directories"));
    }
}
