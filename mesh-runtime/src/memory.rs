//! Memory usage of the process and the limit of its cgroup, for those that shed load before the
//! kernel kills the process.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the resident set size of the process, in bytes.
pub fn resident() -> Option<u64> {
    resident_in(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The cgroup of the process (cgroup v2), if it has a memory limit. The kernel kills a process
/// above the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    directory: PathBuf,
    limit: u64,
}

impl CgroupMemory {
    /// Returns `None` if the cgroup has no limit or is not of version 2.
    pub fn current() -> Option<Self> {
        let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::at(Path::new("/sys/fs/cgroup").join(own_path(&cgroups)?))
    }

    fn at(directory: PathBuf) -> Option<Self> {
        let limit = fs::read_to_string(directory.join("memory.max")).ok()?;
        // `max` means no limit.
        let limit = limit.trim().parse().ok()?;
        Some(Self { directory, limit })
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that the kernel could not reclaim immediately: everything, including
    /// socket buffers, except the pages of files.
    pub fn used(&self) -> Option<u64> {
        let current = fs::read_to_string(self.directory.join("memory.current")).ok()?;
        let current: u64 = current.trim().parse().ok()?;
        let stat = fs::read_to_string(self.directory.join("memory.stat")).ok()?;
        Some(current.saturating_sub(file_pages(&stat)?))
    }
}

fn resident_in(status: &str) -> Option<u64> {
    Some(status_value(status, "VmRSS:")? * 1024)
}

/// Returns a number of /proc/self/status; amounts of memory are in KiB.
pub(crate) fn status_value(status: &str, key: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the path below the mount of version 2, whose hierarchy has the number 0.
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
    fn resident_memory_is_reported() {
        let bytes = resident().expect("the kernel reports it");
        assert!(bytes > 1 << 20, "{bytes}");
        assert_eq!(
            resident_in("VmSize: 9 kB\nVmRSS:\t    12 kB\n"),
            Some(12_288)
        );
    }

    #[test]
    fn cgroup_with_a_limit_is_found() {
        let hybrid = "4:memory:/a/b\n1:cpu:/\n0::/pod/proxy\n";
        assert_eq!(own_path(hybrid), Some("pod/proxy"));
        assert_eq!(own_path("0::/\n"), Some(""));
        assert_eq!(own_path("4:memory:/a\n"), None);

        let directory = tempfile::tempdir().expect("a temporary directory");
        let write =
            |file: &str, text: &str| fs::write(directory.path().join(file), text).expect(file);
        assert_eq!(CgroupMemory::at(directory.path().into()), None);
        write("memory.max", "max\n");
        assert_eq!(CgroupMemory::at(directory.path().into()), None);
        write("memory.max", "262144000\n");
        let container = CgroupMemory::at(directory.path().into()).expect("it has a limit");
        assert_eq!(container.limit(), 262_144_000);
        write("memory.current", "5000\n");
        write("memory.stat", "anon 3000\nfile 1200\nfile_mapped 7\n");
        assert_eq!(container.used(), Some(3800));
    }
}
