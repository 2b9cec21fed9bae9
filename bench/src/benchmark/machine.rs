//! The machine that a benchmark runs on: its description, and whether other programs use it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use xtask::command::captured_stdout;

use crate::testbed::pod::CONGESTION_CONTROL;
use crate::testbed::{Cpus, parse_list};

/// A round does not count if the hypervisor took more than this share of the CPU time.
const MAX_STEAL: f64 = 0.02;
/// A round does not count if programs outside of the benchmark took more than this share.
const MAX_OTHERS: f64 = 0.05;

/// CPU time used by others during a round, as shares of all CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Noise {
    pub(crate) steal: f64,
    pub(crate) others: f64,
}

/// Measures the noise between two moments.
pub(crate) struct NoiseMonitor<'c> {
    begun: Instant,
    before: Times,
    /// The cgroup of everything that a benchmark starts.
    cgroup: &'c Path,
    own_before: f64,
}

/// Seconds, summed over all CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Times {
    idle: f64,
    steal: f64,
    /// Time of interrupts, where the kernel does not account it to the interrupted task.
    interrupts: f64,
}

impl Noise {
    pub(crate) fn is_quiet(self) -> bool {
        self.steal <= MAX_STEAL && self.others <= MAX_OTHERS
    }
}

impl<'c> NoiseMonitor<'c> {
    pub(crate) fn start(cgroup: &'c Path) -> anyhow::Result<Self> {
        Ok(Self {
            begun: Instant::now(),
            before: Times::read()?,
            cgroup,
            own_before: cgroup_time(cgroup)?,
        })
    }

    pub(crate) fn finish(self) -> anyhow::Result<Noise> {
        let now = Times::read()?;
        let cpus = std::thread::available_parallelism()?.get();
        let all = self.begun.elapsed().as_secs_f64() * online_cpus().unwrap_or(cpus) as f64;
        let own = cgroup_time(self.cgroup)? - self.own_before;
        Ok(noise(self.before, now, own, all))
    }
}

fn noise(before: Times, now: Times, own: f64, all: f64) -> Noise {
    let steal = now.steal - before.steal;
    let idle = now.idle - before.idle;
    let interrupts = now.interrupts - before.interrupts;
    Noise {
        steal: steal / all,
        others: ((all - idle - steal - interrupts - own) / all).max(0.0),
    }
}

impl Times {
    fn read() -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        Self::parse(&stat).context("/proc/stat has no line for all CPUs")
    }

    /// Parses the first line: user nice system idle iowait irq softirq steal, in hundredths of a
    /// second.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<f64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let seconds = |index: usize| ticks.get(index).map(|ticks| ticks / 100.0);
        let (hard, soft) = (seconds(5)?, seconds(6)?);
        // A kernel with tick-based accounting never observes a hardware interrupt, and its softirq
        // time is included in the run time of processes as well.
        let counted_apart = hard > 0.0;
        Some(Self {
            idle: seconds(3)? + seconds(4)?,
            steal: seconds(7)?,
            interrupts: if counted_apart { hard + soft } else { 0.0 },
        })
    }
}

/// Returns the CPU time in seconds of a cgroup and its descendants, exited processes included.
pub(crate) fn cgroup_time(cgroup: &Path) -> anyhow::Result<f64> {
    let path = cgroup.join("cpu.stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let micros: f64 = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("{} has no usage_usec", path.display()))?;
    Ok(micros / 1e6)
}

fn online_cpus() -> Option<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    Some(parse_list(list.trim()).len())
}

/// Returns the description of the machine for the report: names and values.
pub(crate) fn description(cpus: Cpus) -> Vec<(&'static str, String)> {
    let first = |path: &str, prefix: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(prefix))?;
        let value = line.split_once(':').map_or(line, |(_, value)| value);
        Some(value.trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    let hypervisor = captured_stdout(&mut Command::new("systemd-detect-virt"));
    vec![
        (
            "CPU",
            format!(
                "{} × {}",
                online_cpus().unwrap_or(0),
                first("/proc/cpuinfo", "model name").unwrap_or_else(unknown)
            ),
        ),
        (
            "virtualisation",
            hypervisor.map_or_else(unknown, |name| name.trim().to_owned()),
        ),
        (
            "memory",
            first("/proc/meminfo", "MemTotal").unwrap_or_else(unknown),
        ),
        (
            "kernel",
            first("/proc/sys/kernel/osrelease", "").unwrap_or_else(unknown),
        ),
        (
            "system",
            first("/etc/os-release", "PRETTY_NAME").unwrap_or_else(unknown),
        ),
        ("congestion control", CONGESTION_CONTROL.to_owned()),
        (
            "pinning",
            format!(
                "clients and servers on CPU {}, proxies on CPU {}",
                cpus.load, cpus.proxies
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_parsed_from_proc_stat() {
        let stat = "cpu  100 0 200 3000 50 0 10 70 0 0\ncpu0 1 2 3\n";
        let times = Times {
            idle: 30.5,
            steal: 0.7,
            interrupts: 0.0,
        };
        assert_eq!(Times::parse(stat), Some(times));
        let apart = Times::parse("cpu  100 0 200 3000 50 25 25 70 0 0\n");
        assert_eq!(apart.map(|times| times.interrupts), Some(0.5));
        assert_eq!(Times::parse("intr 1 2\n"), None);
    }

    #[test]
    fn remaining_cpu_time_is_attributed_to_other_processes() {
        let before = Times {
            idle: 10.0,
            steal: 1.0,
            interrupts: 2.0,
        };
        let now = Times {
            idle: 11.0,
            steal: 1.5,
            interrupts: 2.5,
        };
        // Two CPUs for five seconds.
        let seen = noise(before, now, 7.5, 10.0);
        assert!((seen.steal - 0.05).abs() < 1e-9, "{seen:?}");
        assert!((seen.others - 0.05).abs() < 1e-9, "{seen:?}");
        assert!(!seen.is_quiet());
        let sampling_error = noise(before, now, 9.0, 10.0);
        assert_eq!(sampling_error.others, 0.0);
    }

    #[test]
    fn machine_is_quiet_only_below_both_limits() {
        let noise = |steal, others| Noise { steal, others };
        assert!(noise(0.02, 0.05).is_quiet());
        assert!(!noise(0.021, 0.0).is_quiet());
        assert!(!noise(0.0, 0.051).is_quiet());
    }
}
