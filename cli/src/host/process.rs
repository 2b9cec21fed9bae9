//! The process of a proxy, found by the cgroup of its unit.

use std::fs;
use std::path::Path;

use super::environment::Variables;

/// A running process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The environment at its start.
    pub(crate) environment: Variables,
}

impl Process {
    /// Returns the first process of a cgroup; `None` if none runs there.
    pub(crate) fn of_cgroup(cgroup: &Path) -> Option<Self> {
        let ids = fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
        let mut ids = ids.lines().filter_map(|id| id.parse().ok());
        // One that has ended meanwhile is passed over.
        ids.find_map(|id| Self::read(id, &Path::new("/proc").join(id.to_string())))
    }

    fn read(id: u32, directory: &Path) -> Option<Self> {
        let status = fs::read_to_string(directory.join("status")).ok()?;
        let environment = fs::read(directory.join("environ")).ok()?;
        let variables = environment.split(|byte| *byte == 0);
        let variables = variables.filter_map(|variable| {
            let text = String::from_utf8_lossy(variable).into_owned();
            let (name, value) = text.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Some(Self {
            id,
            uid: real_id(&status, "Uid:")?,
            gid: real_id(&status, "Gid:")?,
            environment: variables.collect(),
        })
    }
}

/// Returns the first of the four ids in a line of `/proc/PID/status`.
fn real_id(status: &str, field: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_with_user_and_environment() {
        let own = std::process::id();
        let process = Process::read(own, Path::new("/proc/self")).unwrap();
        assert_eq!(process.uid, nix::unistd::getuid().as_raw());
        assert_eq!(process.gid, nix::unistd::getgid().as_raw());
        let path = std::env::var("PATH").unwrap();
        assert_eq!(process.environment.get("PATH"), Some(&path));
        let directory = tempfile::tempdir().unwrap();
        let cgroup = directory.path();
        assert_eq!(Process::of_cgroup(cgroup), None);
        fs::write(cgroup.join("cgroup.procs"), format!("0\n{own}\n")).unwrap();
        assert_eq!(Process::of_cgroup(cgroup).unwrap().id, own);
    }
}
