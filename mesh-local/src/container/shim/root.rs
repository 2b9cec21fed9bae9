//! The root file system of a container: the files of the machine with an overlay in memory, and the
//! volumes. The overlay is mounted only in the mount namespace of the container, so that its
//! changes are lost when the last process exits. `/run` and `/tmp` are empty, so that containers do
//! not see runtime files of the machine, such as the private keys of the node.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::pivot_root;
use serde::{Deserialize, Serialize};

use super::CreateSpec;
use crate::file::{FileError, failed};

/// A bind mount of a file or directory of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

/// The root of the machine while the root of the container is set up.
const OLD_ROOT: &str = "/.machine";
/// Directories that are empty in every container.
const EMPTY: [&str; 2] = ["/run", "/tmp"];
/// Files that a container runtime may have mounted on the machine, and that are replaced in
/// containers.
const REPLACED: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/hostname"];
const NONE: Option<&str> = None;

/// Mounts the root of the container and changes to it. The calling process must be in a new mount
/// namespace.
pub(super) fn enter(task: &CreateSpec) -> Result<(), FileError> {
    let slash = Path::new("/");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NONE, slash, NONE, private, NONE).map_err(failed("make mounts private below", slash))?;
    let mut sources = Vec::new();
    for bind in &task.binds {
        let source = fs::canonicalize(&bind.source);
        sources.push(source.map_err(failed("find", &bind.source))?);
    }
    let root = overlay(&task.scratch)?;
    for mounted in machine_mounts()? {
        let target = below(&root, &mounted);
        // The target of a mount may have been removed from the underlying file system.
        if target.exists() {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&mounted), &target, NONE, flags, NONE).map_err(failed("bind", &mounted))?;
        }
    }
    let old = below(&root, Path::new(OLD_ROOT));
    fs::create_dir(&old).map_err(failed("create", &old))?;
    pivot_root(&root, &old).map_err(failed("change the root to", &root))?;
    std::env::set_current_dir("/").map_err(failed("change to", slash))?;
    for own in EMPTY {
        mount_empty(Path::new(own))?;
    }
    for (bind, source) in task.binds.iter().zip(&sources) {
        bind_mount(bind, source)?;
    }
    for (path, contents) in &task.files {
        // The existing file may be a symbolic link.
        let _ = fs::remove_file(path);
        fs::write(path, contents).map_err(failed("write", path))?;
    }
    let old = Path::new(OLD_ROOT);
    umount2(old, MntFlags::MNT_DETACH).map_err(failed("unmount", old))?;
    fs::remove_dir(old).map_err(failed("remove", old))
}

/// Mounts an overlay in memory over the root of the machine, and returns its path.
fn overlay(scratch: &Path) -> Result<PathBuf, FileError> {
    fs::create_dir_all(scratch).map_err(failed("create", scratch))?;
    mount(
        Some("mesh-local"),
        scratch,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=0755"),
    )
    .map_err(failed("mount a tmpfs at", scratch))?;
    let [upper, work, root] = ["upper", "work", "root"].map(|name| scratch.join(name));
    for directory in [&upper, &work, &root] {
        fs::create_dir(directory).map_err(failed("create", directory))?;
    }
    let options = format!(
        "lowerdir=/,upperdir={},workdir={}",
        upper.display(),
        work.display()
    );
    mount(
        Some("mesh-local"),
        &root,
        Some("overlay"),
        MsFlags::empty(),
        Some(options.as_str()),
    )
    .map_err(failed("mount an overlay over", Path::new("/")))?;
    Ok(root)
}

/// Returns the mount points of other file systems of the machine, which the overlay does not
/// include.
fn machine_mounts() -> Result<Vec<PathBuf>, FileError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(top_mounts(&text))
}

fn top_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let rows: Vec<(&str, &str, PathBuf)> = mountinfo
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (id, parent) = (fields.next()?, fields.next()?);
            Some((id, parent, unescape(fields.nth(2)?)))
        })
        .collect();
    let is_root = |path: &Path| path == Path::new("/");
    let roots: Vec<&str> = rows
        .iter()
        .filter(|(_, _, at)| is_root(at))
        .map(|(id, ..)| *id)
        .collect();
    let own = |path: &Path| {
        EMPTY
            .iter()
            .chain(&REPLACED)
            .any(|own| path.starts_with(own))
    };
    rows.iter()
        .filter(|(_, parent, at)| roots.contains(parent) && !is_root(at) && !own(at))
        .map(|(_, _, at)| at.clone())
        .collect()
}

/// Decodes the octal escapes of blanks and backslashes.
fn unescape(text: &str) -> PathBuf {
    let mut out = text.to_owned();
    for (code, plain) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        out = out.replace(code, plain);
    }
    PathBuf::from(out)
}

fn mount_empty(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(failed("create", path))?;
    let options = if path == Path::new("/tmp") {
        "mode=1777"
    } else {
        "mode=0755"
    };
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("mesh-local"),
        path,
        Some("tmpfs"),
        flags,
        Some(options),
    )
    .map_err(failed("mount a tmpfs at", path))
}

/// Creates the target of a bind mount and mounts it.
fn bind_mount(bind: &Bind, source: &Path) -> Result<(), FileError> {
    let target = &bind.target;
    let source = below(Path::new(OLD_ROOT), source);
    if source.is_dir() {
        fs::create_dir_all(target).map_err(failed("create", target))?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(failed("create", parent))?;
        }
        if !target.exists() {
            fs::File::create(target).map_err(failed("create", target))?;
        }
    }
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(&source), target, NONE, flags, NONE).map_err(failed("mount", target))?;
    if bind.read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, target, NONE, flags, NONE).map_err(failed("make read-only", target))?;
    }
    Ok(())
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_mounts_excludes_nested_and_replaced_mounts() {
        let mountinfo = "27 1 253:0 / / rw - ext4 /dev/vda rw\n22 27 0:20 / /proc rw - proc proc rw\n\
                         23 27 0:21 / /sys rw - sysfs sysfs rw\n31 23 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                         40 27 0:30 / /run rw - tmpfs tmpfs rw\n41 27 0:31 / /srv/a\\040b rw - ext4 x rw\n\
                         42 27 0:32 / /run/netns/x rw - nsfs nsfs rw\n43 27 0:33 / /etc/hosts rw - ext4 x rw\n";
        let expect: Vec<PathBuf> = ["/proc", "/sys", "/srv/a b"].map(PathBuf::from).to_vec();
        assert_eq!(top_mounts(mountinfo), expect);
    }
}
