//! Finds the times when a CPU stood still. A hypervisor that runs another machine for some
//! milliseconds delays every request of that time, and need not report it as stolen time. At one
//! percent of the time, such stalls determine p99.
//!
//! A thread on each CPU, of a higher class than all others, wakes up every millisecond. If it wakes
//! up late, nothing else ran there either.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::wait_for;
use crate::testbed::process::run;

const INTERVAL: Duration = Duration::from_millis(1);
/// The threads of real-time classes are late by less on a CPU that runs.
const LATE: Duration = Duration::from_millis(1);

/// Watches CPUs.
pub(super) struct StallWatch {
    is_over: Arc<AtomicBool>,
    watchers: Vec<JoinHandle<Vec<Stall>>>,
}

/// The stalls of all watched CPUs.
#[derive(Debug, Default)]
pub(super) struct Stalls(Vec<Stall>);

#[derive(Debug, Clone, Copy)]
struct Stall {
    began: Instant,
    ended: Instant,
}

impl StallWatch {
    /// Returns when each of the CPUs is watched.
    pub(super) fn start(cpus: &[usize]) -> anyhow::Result<Self> {
        let mut watch = Self {
            is_over: Arc::default(),
            watchers: Vec::new(),
        };
        for cpu in cpus.iter().copied() {
            let (started, is_started) = mpsc::channel();
            let is_over = watch.is_over.clone();
            watch.watchers.push(thread::spawn(move || {
                let settled = settle(cpu);
                let is_settled = settled.is_ok();
                // The receiver waits for it.
                let _sent = started.send(settled);
                if is_settled {
                    watch_until(&is_over)
                } else {
                    Vec::new()
                }
            }));
            let settled = is_started.recv().context("a watcher ended")?;
            settled.with_context(|| format!("watch CPU {cpu}"))?;
        }
        Ok(watch)
    }

    pub(super) fn finish(self) -> anyhow::Result<Stalls> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Stalls::default();
        for watcher in self.watchers {
            match watcher.join() {
                Ok(stalls) => all.0.extend(stalls),
                Err(_panic) => bail!("a watcher panicked"),
            }
        }
        Ok(all)
    }
}

/// Moves this thread to a CPU, and into a scheduling class above other programs.
fn settle(cpu: usize) -> anyhow::Result<()> {
    let link = fs::read_link("/proc/thread-self").context("read the number of the thread")?;
    let thread = link.file_name().context("a thread has a number")?;
    let mut move_to_cpu = Command::new("taskset");
    move_to_cpu.args(["--pid", "--cpu-list", &cpu.to_string()]);
    run(move_to_cpu.arg(thread))?;
    let mut raise = Command::new("chrt");
    raise.args(["--fifo", "--pid", "1"]);
    run(raise.arg(thread))
}

fn watch_until(is_over: &AtomicBool) -> Vec<Stall> {
    let mut stalls = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let due = Instant::now() + INTERVAL;
        wait_for(INTERVAL);
        let now = Instant::now();
        if now > due + LATE {
            stalls.push(Stall {
                began: due,
                ended: now,
            });
        }
    }
    stalls
}

impl Stalls {
    /// Whether a stall delayed an operation: it was in flight during the stall, or while the CPU
    /// caught up, which takes about as long again.
    pub(super) fn delayed(&self, from: Instant, to: Instant) -> bool {
        self.0.iter().any(|stall| {
            let made_up = stall.ended + (stall.ended - stall.began);
            from < made_up && to > stall.began
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_during_and_after_a_stall_are_delayed() {
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        let stalls = Stalls(vec![Stall {
            began: at(10),
            ended: at(14),
        }]);
        for (from, to, expected) in [
            (0, 9, false),
            (0, 11, true),
            (12, 13, true),
            (9, 30, true),
            (15, 16, true),
            (18, 19, false),
        ] {
            assert_eq!(stalls.delayed(at(from), at(to)), expected, "{from}-{to}");
        }
        assert!(!Stalls::default().delayed(at(0), at(20)));
    }
}
