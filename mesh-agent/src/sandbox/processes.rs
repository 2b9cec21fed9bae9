//! Finds the processes of a pod in `/proc`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::cgroup_path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// In clock ticks since the boot.
    pub(super) started: u64,
    pub(super) container_id: Option<String>,
}

impl Process {
    pub(super) fn netns(&self, processes: &Path) -> PathBuf {
        processes.join(self.pid.to_string()).join("ns/net")
    }
}

/// Returns the processes in the pod's cgroup. Skips those that exit meanwhile.
pub(super) fn of_pod(processes: &Path, uid: &str) -> io::Result<Vec<Process>> {
    let own = fs::read_to_string(processes.join("self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for entry in fs::read_dir(processes)? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        found.extend(process_of_pod(processes, pid, &own, uid));
    }
    Ok(found)
}

fn process_of_pod(processes: &Path, pid: u32, own: &str, uid: &str) -> Option<Process> {
    let directory = processes.join(pid.to_string());
    let cgroups = fs::read_to_string(directory.join("cgroup")).ok()?;
    let membership = cgroup_path::find_pod_process(&cgroups, own, uid)?;
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    Some(Process {
        pid,
        started: started(&stat)?,
        container_id: membership.container_id,
    })
}

/// Parses field 22 of `/proc/PID/stat`, after the program's name in parentheses.
fn started(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_parsed_after_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        assert_eq!(started(&format!("17 (sh) {rest}")), Some(4242));
        assert_eq!(started(&format!("17 (a ) b) 1 (c) {rest}")), Some(4242));
        assert_eq!(started("17 (sh) S 1"), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(started(&own).is_some());
    }

    #[test]
    fn processes_of_the_pod_are_selected() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: u32, cgroup: &str| {
            let directory = proc.path().join(pid.to_string());
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("cgroup"), cgroup).unwrap();
            let zeros = "0 ".repeat(18);
            fs::write(
                directory.join("stat"),
                format!("{pid} (x) S {zeros}{pid}00 0"),
            )
            .unwrap();
        };
        process(7, "0::/kubepods/poda-b/c1\n");
        process(8, "0::/kubepods/podother/c1\n");
        process(9, "1:cpu:/\n0::/kubepods/poda-b/c2\n");
        fs::create_dir(proc.path().join("10")).unwrap();
        fs::create_dir(proc.path().join("sys")).unwrap();
        let mut found = of_pod(proc.path(), "a-b").unwrap();
        found.sort_by_key(|process| process.pid);
        let found: Vec<_> = found
            .iter()
            .map(|process| {
                (
                    process.pid,
                    process.started,
                    process.container_id.as_deref(),
                )
            })
            .collect();
        assert_eq!(found, [(7, 700, Some("c1")), (9, 900, Some("c2"))]);
    }
}
