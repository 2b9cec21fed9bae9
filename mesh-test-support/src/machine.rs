//! The resources that a test creates on the machine: namespaces, links, a cgroup, pins and files.
//!
//! All of it has names that begin with `mesht`, the id of the process in hexadecimal, and a number:
//! short enough for a link. A test removes what it created, also when it fails. A killed process
//! cannot, so the first [`unique_name`] of a process removes everything whose process is gone.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io, process};

use nix::mount::{MntFlags, umount2};

use crate::command::try_run;
use crate::eventually::{TimedOut, try_eventually};

const PREFIX: &str = "mesht";
/// Where `ip netns` keeps namespaces.
pub(crate) const NAMESPACES: &str = "/run/netns";
const LINKS: &str = "/sys/class/net";
/// The BPF file system.
const PINS: &str = "/sys/fs/bpf";

/// A directory for files, a cgroup, and names for pins and a link. Dropping it kills the processes
/// in the cgroup and removes all four, with their contents and mounts.
pub struct Machine {
    name: String,
    cgroup: PathBuf,
}

impl Machine {
    /// Creates the directory and the cgroup.
    ///
    /// # Panics
    ///
    /// It cannot: it takes root and a cgroup2 file system.
    pub fn new() -> Self {
        let name = unique_name();
        let mount = cgroup2().expect("a cgroup2 file system");
        let cgroup = mount.join(&name);
        let machine = Self { name, cgroup };
        fs::create_dir(machine.directory()).expect("a directory");
        fs::create_dir(&machine.cgroup).expect("a cgroup");
        machine
    }

    /// Returns the name of everything. A link has the same name, if a test creates one.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn directory(&self) -> PathBuf {
        env::temp_dir().join(&self.name)
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Returns a directory on the BPF file system, which does not exist yet.
    pub fn pins(&self) -> PathBuf {
        Path::new(PINS).join(&self.name)
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Returns a name that nothing else on the machine has.
pub fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    static REMAINS: Once = Once::new();
    REMAINS.call_once(remove_remains);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{:x}-{number}", process::id())
}

/// Returns the mount point of the cgroup v2 hierarchy, which also exists on hosts with v1
/// controllers.
pub fn cgroup2() -> Option<PathBuf> {
    let of_cgroup2 = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == "cgroup2").then(|| point.into())
    };
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(of_cgroup2)
}

/// Returns the first two numbers of the running kernel's version.
///
/// # Panics
///
/// The kernel has no version like that.
pub fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    version(&release).expect("a version of Linux")
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Kills the processes in a cgroup and removes it with its descendants, if it exists.
///
/// The kernel refuses to remove a cgroup while a process in it is still exiting.
pub fn remove_cgroup(path: &Path) -> Result<(), TimedOut> {
    let _killed = fs::write(path.join("cgroup.kill"), "1");
    try_eventually("the processes in the cgroup exit", || {
        Ok((remove_directories(path).is_ok() || !path.exists()).then_some(()))
    })
}

/// Removes a cgroup and its descendants, whose files the kernel removes.
fn remove_directories(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_directories(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Removes everything that has this name. The next process removes the rest.
fn remove(name: &str) {
    if let Some(mount) = cgroup2() {
        let _best_effort = remove_cgroup(&mount.join(name));
    }
    if Path::new(NAMESPACES).join(name).exists() {
        let _best_effort = try_run(format!("ip netns del {name}"));
    }
    if Path::new(LINKS).join(name).exists() {
        let _best_effort = try_run(format!("ip link del {name}"));
    }
    // The kernel detaches programs when the last pin is removed.
    let _best_effort = fs::remove_dir_all(Path::new(PINS).join(name));
    let directory = env::temp_dir().join(name);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(&directory)) {
        let _best_effort = umount2(point, MntFlags::MNT_DETACH);
    }
    let _best_effort = fs::remove_dir_all(directory);
}

/// Removes the resources of processes that have exited.
fn remove_remains() {
    let places = [NAMESPACES, LINKS, PINS].map(PathBuf::from);
    for place in places.into_iter().chain([env::temp_dir()]).chain(cgroup2()) {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if process_of(&name).is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
                remove(&name);
            }
        }
    }
}

/// Returns the process that has given this name.
fn process_of(name: &str) -> Option<u32> {
    let (id, _number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    u32::from_str_radix(id, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_process() {
        assert_eq!(process_of(&unique_name()), Some(process::id()));
        assert_eq!(process_of("mesht1f-3-inner"), Some(0x1f));
        for other in ["mesht", "mesh-test-1", "messages-1", "meshtool-1"] {
            assert_eq!(process_of(other), None, "{other}");
        }
        assert!(unique_name().len() < nix::libc::IFNAMSIZ);
    }

    #[test]
    fn version_of_kernel_is_first_two_numbers() {
        assert_eq!(version("6.1.0-50-cloud-amd64\n"), Some((6, 1)));
        assert_eq!(version("6.18+deb13-amd64"), Some((6, 18)));
        assert_eq!(version("Linux"), None);
        assert!(kernel() > (3, 0), "{:?}", kernel());
    }

    #[test]
    fn remains_of_killed_process_are_removed() {
        crate::require_root!();
        // The first name that this process takes removes remains, which the test must not meet.
        let _name = unique_name();
        // No process has an id this large.
        let name = format!("{PREFIX}{:x}-0", u32::MAX);
        let machine = Machine {
            cgroup: cgroup2().expect("a cgroup2 file system").join(&name),
            name,
        };
        fs::create_dir_all(machine.cgroup.join("pod/app")).unwrap();
        fs::create_dir_all(machine.path("files")).unwrap();
        crate::command::run(format!("ip netns add {}", machine.name));
        let (cgroup, directory) = (machine.cgroup.clone(), machine.directory());
        let namespace = Path::new(NAMESPACES).join(&machine.name);
        assert!(cgroup.exists() && directory.exists() && namespace.exists());
        let _not_removed = std::mem::ManuallyDrop::new(machine);
        remove_remains();
        assert!(!cgroup.exists() && !directory.exists() && !namespace.exists());
    }
}
