//! `process_*`, read from /proc/self by each scrape. The names are the same as in Linkerd's proxy:
//! Prometheus' own plus clock, uptime, threads and network bytes.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Scrape;
use super::labels::Labels;
use crate::descriptors;
use crate::memory::status_value;

/// Values that are determined once, at start.
#[derive(Debug)]
pub(super) struct Process {
    start_time: f64,
}

/// Clock ticks per second in /proc. `USER_HZ` is part of the kernel's interface and is 100 on every
/// supported architecture, independently of the kernel's own tick rate.
const USER_HZ: f64 = 100.0;

impl Process {
    pub(super) fn new() -> Self {
        let start_time = boot_time()
            .zip(stat_field(STAT_START_TIME))
            .map_or_else(unix_now, |(boot, ticks)| boot + ticks / USER_HZ);
        Self { start_time }
    }

    pub(super) fn collect(&self, scrape: &mut Scrape) {
        let none = Labels::new();
        let now = unix_now();
        scrape.gauge(
            "process_start_time_seconds",
            "Time that the process started, in seconds since the UNIX epoch",
            &none,
            self.start_time,
        );
        scrape.gauge(
            "process_clock_time_seconds",
            "Current system time, in seconds since the UNIX epoch",
            &none,
            now,
        );
        scrape.counter(
            "process_uptime_seconds_total",
            "Seconds since the process started",
            &none,
            (now - self.start_time).max(0.0),
        );
        if let (Some(user), Some(system)) = (stat_field(STAT_UTIME), stat_field(STAT_STIME)) {
            scrape.counter(
                "process_cpu_seconds_total",
                "User and system CPU time spent, in seconds",
                &none,
                (user + system) / USER_HZ,
            );
        }
        collect_memory(scrape, &none);
        collect_files(scrape, &none);
        collect_network(scrape, &none);
    }
}

// Fields of /proc/self/stat, counted from the state field, which is the first after the
// parenthesised name.
const STAT_UTIME: usize = 11;
const STAT_STIME: usize = 12;
const STAT_START_TIME: usize = 19;

fn stat_field(index: usize) -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may contain blanks and parentheses; nothing after its last `)` does.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(index)?.parse().ok()
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

fn collect_memory(scrape: &mut Scrape, none: &Labels) {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return;
    };
    for (key, name, help, unit) in [
        (
            "VmSize:",
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes",
            1024.0,
        ),
        (
            "VmRSS:",
            "process_resident_memory_bytes",
            "Resident memory size in bytes",
            1024.0,
        ),
        (
            "Threads:",
            "process_threads",
            "Number of OS threads in the process",
            1.0,
        ),
    ] {
        if let Some(value) = status_value(&status, key) {
            scrape.gauge(name, help, none, value as f64 * unit);
        }
    }
}

fn collect_files(scrape: &mut Scrape, none: &Labels) {
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // The directory being read is itself an open file.
        let open = entries.count().saturating_sub(1);
        scrape.gauge(
            "process_open_fds",
            "Number of open file descriptors",
            none,
            open as f64,
        );
    }
    if let Some(max) = descriptors::limit() {
        scrape.gauge(
            "process_max_fds",
            "Maximum number of open file descriptors",
            none,
            max as f64,
        );
    }
}

fn collect_network(scrape: &mut Scrape, none: &Labels) {
    let Ok(devices) = fs::read_to_string("/proc/self/net/dev") else {
        return;
    };
    let (received, sent) = network_bytes(&devices);
    scrape.counter(
        "process_network_receive_bytes_total",
        "Bytes received by all interfaces of the process's network namespace",
        none,
        received,
    );
    scrape.counter(
        "process_network_transmit_bytes_total",
        "Bytes sent by all interfaces of the process's network namespace",
        none,
        sent,
    );
}

/// Returns the received (1st) and sent (9th) bytes of all interfaces.
fn network_bytes(devices: &str) -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for line in devices.lines().skip(2) {
        let Some((_, counters)) = line.split_once(':') else {
            continue;
        };
        let mut fields = counters.split_ascii_whitespace();
        let mut next = |n| fields.nth(n).and_then(|f| f.parse::<f64>().ok());
        if let (Some(received), Some(sent)) = (next(0), next(7)) {
            total.0 += received;
            total.1 += sent;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_bytes_are_summed_over_interfaces() {
        let devices = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n\
            \u{20}   lo:  100 1 0 0 0 0 0 0  200 1 0 0 0 0 0 0\n  eth0: 1000 1 0 0 0 0 0 0 4000 1 0 0 0 0 0 0\n";
        assert_eq!(network_bytes(devices), (1100.0, 4200.0));
    }

    #[test]
    fn all_process_metrics_are_collected() {
        let mut scrape = Scrape::default();
        let process = Process::new();
        process.collect(&mut scrape);
        assert_eq!(scrape.families.len(), 11);
        let age = unix_now() - process.start_time;
        assert!((0.0..86_400.0).contains(&age), "started {age} s ago");
    }
}
