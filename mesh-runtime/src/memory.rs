//! How much memory the process takes, and may take by its container. For whoever stops before the
//! kernel stops him.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that the process has resident.
pub fn resident() -> Option<u64> {
    resident_in(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The control group of the process that the kernel may kill for its memory (cgroup v2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    folder: PathBuf,
    limit: u64,
}

impl CgroupMemory {
    /// `None` where the own control group has no limit, or is not of version 2.
    pub fn current() -> Option<Self> {
        let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::at(Path::new("/sys/fs/cgroup").join(own_path(&cgroups)?))
    }

    fn at(folder: PathBuf) -> Option<Self> {
        let limit = fs::read_to_string(folder.join("memory.max")).ok()?;
        // `max`, without a limit.
        let limit = limit.trim().parse().ok()?;
        Some(Self { folder, limit })
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that the kernel could not take back at once: everything, buffers of sockets too, but
    /// the pages of files.
    pub fn used(&self) -> Option<u64> {
        let current = fs::read_to_string(self.folder.join("memory.current")).ok()?;
        let current: u64 = current.trim().parse().ok()?;
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        Some(current.saturating_sub(file_pages(&stat)?))
    }
}

fn resident_in(status: &str) -> Option<u64> {
    Some(status_value(status, "VmRSS:")? * 1024)
}

/// A number of /proc/self/status; those of memory are in KiB.
pub(crate) fn status_value(status: &str, key: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// The path below the mount of version 2, of whose hierarchy the number is 0.
fn own_path(cgroups: &str) -> Option<&str> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.trim_start_matches('/'))
}

fn file_pages(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("file "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_told() {
        let bytes = resident().expect("the kernel tells");
        assert!(bytes > 1 << 20, "{bytes}");
        assert_eq!(
            resident_in("VmSize: 9 kB\nVmRSS:\t    12 kB\n"),
            Some(12_288)
        );
    }

    #[test]
    fn containers_with_a_limit_are_found() {
        let hybrid = "4:memory:/a/b\n1:cpu:/\n0::/pod/proxy\n";
        assert_eq!(own_path(hybrid), Some("pod/proxy"));
        assert_eq!(own_path("0::/\n"), Some(""));
        assert_eq!(own_path("4:memory:/a\n"), None);

        let folder = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).expect(file);
        assert_eq!(CgroupMemory::at(folder.path().into()), None);
        write("memory.max", "max\n");
        assert_eq!(CgroupMemory::at(folder.path().into()), None);
        write("memory.max", "262144000\n");
        let container = CgroupMemory::at(folder.path().into()).expect("it has a limit");
        assert_eq!(container.limit(), 262_144_000);
        write("memory.current", "5000\n");
        write("memory.stat", "anon 3000\nfile 1200\nfile_mapped 7\n");
        assert_eq!(container.used(), Some(3800));
    }
}
