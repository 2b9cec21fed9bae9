//! The files of a container: those of the machine, with the container's own changes in memory on
//! top, and its volumes.
//!
//! The changes live in a file system that only the container's mount namespace has, so they are
//! gone when its last process is. `/run` and `/tmp` start empty: what programs of the machine keep
//! there is none of the container's business, least of all the node's keys.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::pivot_root,
};
use serde::{Deserialize, Serialize};

use super::{Start, StubError};

/// A file or folder of the machine that the container sees elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

/// Where the machine's files are while the container's are put together.
const OLD_ROOT: &str = "/.machine";
/// Empty in every container.
const OWN: [&str; 2] = ["/run", "/tmp"];
/// Container runtimes mount these one by one; the container has its own.
const REPLACED: [&str; 3] = ["/etc/resolv.conf", "/etc/hosts", "/etc/hostname"];
const NONE: Option<&str> = None;

/// Makes the container's files the calling process's. The mount namespace must be its own already.
pub(super) fn enter(task: &Start) -> Result<(), StubError> {
    let slash = Path::new("/");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NONE, slash, NONE, private, NONE).map_err(failed("keep mounts private below", slash))?;
    let mut sources = Vec::new();
    for bind in &task.binds {
        let source = fs::canonicalize(&bind.source);
        sources.push(source.map_err(files("find", &bind.source))?);
    }
    let root = overlay(&task.scratch)?;
    for mounted in machine_mounts()? {
        let target = below(&root, &mounted);
        // A file that is mounted over something since removed has no place here.
        if target.exists() {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&mounted), &target, NONE, flags, NONE).map_err(failed("show", &mounted))?;
        }
    }
    let old = below(&root, Path::new(OLD_ROOT));
    fs::create_dir(&old).map_err(files("make", &old))?;
    pivot_root(&root, &old).map_err(failed("change the root to", &root))?;
    std::env::set_current_dir("/").map_err(files("change to", slash))?;
    for own in OWN {
        empty(Path::new(own))?;
    }
    for (bind, source) in task.binds.iter().zip(&sources) {
        show(bind, source)?;
    }
    for (path, contents) in &task.files {
        // What is there may be a link that leads elsewhere.
        let _ = fs::remove_file(path);
        fs::write(path, contents).map_err(files("write", path))?;
    }
    let old = Path::new(OLD_ROOT);
    umount2(old, MntFlags::MNT_DETACH).map_err(failed("let go of", old))?;
    fs::remove_dir(old).map_err(files("remove", old))
}

/// The machine's root with a layer of memory over it.
fn overlay(scratch: &Path) -> Result<PathBuf, StubError> {
    fs::create_dir_all(scratch).map_err(files("make", scratch))?;
    mount(
        Some("mesh-local"),
        scratch,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=0755"),
    )
    .map_err(failed("mount memory at", scratch))?;
    let [upper, work, root] = ["upper", "work", "root"].map(|name| scratch.join(name));
    for folder in [&upper, &work, &root] {
        fs::create_dir(folder).map_err(files("make", folder))?;
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
    .map_err(failed("lay the container's files over", Path::new("/")))?;
    Ok(root)
}

/// The file systems of the machine beside the root: the overlay shows none of them.
fn machine_mounts() -> Result<Vec<PathBuf>, StubError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(path).map_err(files("read", path))?;
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
    let own = |path: &Path| OWN.iter().chain(&REPLACED).any(|own| path.starts_with(own));
    rows.iter()
        .filter(|(_, parent, at)| roots.contains(parent) && !is_root(at) && !own(at))
        .map(|(_, _, at)| at.clone())
        .collect()
}

/// Blanks and backslashes are written as octal numbers.
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

fn empty(path: &Path) -> Result<(), StubError> {
    fs::create_dir_all(path).map_err(files("make", path))?;
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
    .map_err(failed("empty", path))
}

/// Makes a place for the source and puts it there.
fn show(bind: &Bind, source: &Path) -> Result<(), StubError> {
    let target = &bind.target;
    let source = below(Path::new(OLD_ROOT), source);
    if source.is_dir() {
        fs::create_dir_all(target).map_err(files("make", target))?;
    } else {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(files("make", parent))?;
        }
        if !target.exists() {
            fs::File::create(target).map_err(files("make", target))?;
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

fn files<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> StubError + 'a {
    move |source| StubError::Files {
        what,
        path: path.to_owned(),
        source,
    }
}

fn failed<'a>(what: &'static str, path: &'a Path) -> impl Fn(nix::Error) -> StubError + 'a {
    move |source| StubError::Files {
        what,
        path: path.to_owned(),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_directly_below_the_root() {
        let mountinfo = "27 1 253:0 / / rw - ext4 /dev/vda rw\n22 27 0:20 / /proc rw - proc proc rw\n\
                         23 27 0:21 / /sys rw - sysfs sysfs rw\n31 23 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                         40 27 0:30 / /run rw - tmpfs tmpfs rw\n41 27 0:31 / /srv/a\\040b rw - ext4 x rw\n\
                         42 27 0:32 / /run/netns/x rw - nsfs nsfs rw\n43 27 0:33 / /etc/hosts rw - ext4 x rw\n";
        let expect: Vec<PathBuf> = ["/proc", "/sys", "/srv/a b"].map(PathBuf::from).to_vec();
        assert_eq!(top_mounts(mountinfo), expect);
    }
}
