//! Resource usage of a process: run time from the scheduler, memory from its page tables.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) anonymous: u64,
}

/// Returns the CPU seconds of all threads of a process, with a resolution of nanoseconds rather
/// than clock ticks.
pub(crate) fn run_time(process: u32) -> anyhow::Result<f64> {
    let directory = format!("/proc/{process}/task");
    let mut nanos = 0;
    for thread in fs::read_dir(&directory).with_context(|| format!("read {directory}"))? {
        let path = thread?.path().join("schedstat");
        // A thread may exit after it was listed.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        nanos += parse_run_time(&text).with_context(|| format!("read {}", path.display()))?;
    }
    Ok(nanos as f64 / 1e9)
}

/// Returns the name and the CPU seconds of each thread of a process, the first thread first.
pub(crate) fn thread_run_times(process: u32) -> anyhow::Result<Vec<(String, f64)>> {
    let directory = format!("/proc/{process}/task");
    let mut threads = Vec::new();
    for thread in fs::read_dir(&directory).with_context(|| format!("read {directory}"))? {
        let thread = thread?;
        let read = |file: &str| fs::read_to_string(thread.path().join(file));
        // A thread may exit after it was listed.
        let (Ok(name), Ok(text)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let nanos = parse_run_time(&text).context("read the run time of a thread")?;
        let number: u32 = thread.file_name().to_string_lossy().parse()?;
        threads.push((number, name.trim().to_owned(), nanos as f64 / 1e9));
    }
    // The first thread has the number of the process.
    threads.sort_by_key(|(number, ..)| (*number != process, *number));
    let named = threads.into_iter().map(|(_, name, time)| (name, time));
    Ok(named.collect())
}

pub(crate) fn memory(process: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(Path::new(&path)).with_context(|| format!("read {path}"))?;
    parse_memory(&status).with_context(|| format!("{path} has no VmRSS or RssAnon"))
}

/// Returns the resident memory of a process in bytes, with its share of pages that several
/// processes have.
pub(crate) fn proportional(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    bytes(&text, "Pss:").with_context(|| format!("{path} has no Pss"))
}

/// Lets [`peak`] begin anew.
pub(crate) fn reset_peak(process: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{process}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("write {path}"))
}

/// Returns the maximum of resident memory in bytes.
pub(crate) fn peak(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    bytes(&status, "VmHWM:").with_context(|| format!("{path} has no VmHWM"))
}

/// Parses nanoseconds run, nanoseconds waited, time slices.
fn parse_run_time(schedstat: &str) -> Option<u64> {
    schedstat.split(' ').next()?.parse().ok()
}

fn parse_memory(status: &str) -> Option<Memory> {
    Some(Memory {
        resident: bytes(status, "VmRSS:")?,
        anonymous: bytes(status, "RssAnon:")?,
    })
}

/// Parses a line of /proc/PID/status, whose unit is KiB.
fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(parse_run_time("123456 789 10\n"), Some(123_456));
        assert_eq!(parse_run_time(""), None);
        let status = "Name:\tx\nVmRSS:\t   12 kB\nRssAnon:\t  4 kB\n";
        let memory = parse_memory(status).expect("both lines are present");
        assert_eq!((memory.resident, memory.anonymous), (12 * 1024, 4 * 1024));
    }

    #[test]
    fn own_process_has_run_time_and_memory() {
        let own = std::process::id();
        assert!(run_time(own).expect("this process runs") > 0.0);
        assert!(memory(own).expect("this process runs").resident > 0);
        assert!(proportional(own).expect("this process runs") > 0);
        reset_peak(own).expect("this process may reset its own");
        assert!(peak(own).expect("this process runs") > 0);
        let threads = thread_run_times(own).expect("this process runs");
        let path = format!("/proc/{own}/comm");
        let name = fs::read_to_string(path).expect("the first thread has a name");
        assert_eq!(threads[0].0, name.trim());
    }
}
