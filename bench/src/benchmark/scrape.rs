//! Measures the CPU time of a scrape of a proxy with 10,000 series: sample lines of its exposition.
//!
//! The client's proxy gets its series from requests to many targets, as in a large cluster. Then
//! there is no load, so that the run time of the data threads is the time that the scrape takes
//! from them.

use std::net::Ipv4Addr;

use anyhow::{Context, bail};

use super::memory::hold;
use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::{CLIENT, System};
use super::traffic::rounds;
use super::workload::{IdleConnection, Service};
use super::{Run, load};
use crate::testbed::process::Process;
use crate::testbed::proxies::{self, ADMIN};
use crate::testbed::usage;

const SERIES: usize = 10_000;
/// The first target; each has an endpoint of its own.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
/// Targets that are added at a time until there are enough series.
const STEP: u32 = 10;
/// More than the targets of 10,000 series: a proxy has more than ten for each.
const MOST: u32 = 1000;
/// Scrapes in a round.
const SCRAPES: u32 = 20;
/// The beginning of the names of data threads. The first thread is the control thread.
const DATA: &str = "data-";

/// Run times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RunTimes {
    control: f64,
    data: f64,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let mut system = System::start(run.testbed, SystemUnderTest::MeshProxy)?;
    let (_held, series) = fill(run, &system)?;
    scrape(run, &system, 1)?;
    let process = system.processes().context("the system has proxies")?;
    rounds(run, |_, _| {
        let before = RunTimes::read(process.outbound)?;
        let failed = scrape(run, &system, SCRAPES)?;
        let after = RunTimes::read(process.outbound)?;
        system.check()?;
        let each = |after: f64, before: f64| (after - before) / f64::from(SCRAPES);
        let sample = Sample::from([
            (Metric::Series, series as f64),
            (Metric::ScrapeControl, each(after.control, before.control)),
            (Metric::ScrapeData, each(after.data, before.data)),
        ]);
        Ok(Round {
            samples: [(SystemUnderTest::MeshProxy, sample)].into(),
            failed: [(SystemUnderTest::MeshProxy, failed)].into(),
            ..Round::default()
        })
    })
}

/// Opens connections to more and more targets until the proxy has enough series. They close when
/// the returned processes are dropped.
fn fill(run: Run<'_>, system: &System) -> anyhow::Result<(Vec<Process>, usize)> {
    let mut held = Vec::new();
    for first in (0..MOST).step_by(STEP as usize) {
        run.testbed.check_interrupt()?;
        let ip = Ipv4Addr::from(u32::from(FIRST) + first);
        let to = format!("{ip}:{}", Service::Http1.port());
        let connections = (STEP, STEP);
        held.push(hold(
            run.testbed,
            system,
            &to,
            connections,
            IdleConnection::Http1,
        )?);
        let series = samples(&proxies::metrics(&system.pods.client)?);
        if series >= SERIES {
            return Ok((held, series));
        }
    }
    bail!("the proxy has fewer than {SERIES} series with {MOST} targets")
}

/// Scrapes the client's proxy, and returns the number of failures.
fn scrape(run: Run<'_>, system: &System, scrapes: u32) -> anyhow::Result<u64> {
    let pod = &system.pods.client;
    let mut command = pod.command(CLIENT, &run.testbed.programs.bench)?;
    command
        .args([
            "load",
            "scrape",
            "--at",
            &format!("{}:{}", ADMIN.0, ADMIN.1),
        ])
        .args(["--scrapes", &scrapes.to_string()]);
    let output = Process::start(&format!("{}-scrape", pod.name), &mut command)?.output()?;
    Ok(load::parse_bench_load(&output)?.failed)
}

/// Returns the number of sample lines of an exposition.
fn samples(exposition: &str) -> usize {
    let is_sample = |line: &&str| !line.is_empty() && !line.starts_with('#');
    exposition.lines().filter(is_sample).count()
}

impl RunTimes {
    fn read(process: u32) -> anyhow::Result<Self> {
        Self::of(&usage::thread_run_times(process)?)
    }

    fn of(threads: &[(String, f64)]) -> anyhow::Result<Self> {
        let (_, control) = threads.first().context("the process has no thread")?;
        let data = threads.iter().filter(|(name, _)| name.starts_with(DATA));
        if data.clone().next().is_none() {
            bail!("the proxy has no thread whose name begins with {DATA}");
        }
        Ok(Self {
            control: *control,
            data: data.map(|(_, time)| time).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_an_exposition_are_not_samples() {
        assert_eq!(samples("# TYPE a counter\na{b=\"#\"} 1\n\na 2\n# EOF\n"), 2);
    }

    #[test]
    fn run_times_are_those_of_control_and_data_threads() {
        let thread = |name: &str, time| (name.to_owned(), time);
        let threads = [
            thread("mesh-proxy", 1.0),
            thread("access-log", 8.0),
            thread("data-0", 2.0),
            thread("data-1", 3.0),
        ];
        let expected = RunTimes {
            control: 1.0,
            data: 5.0,
        };
        assert_eq!(RunTimes::of(&threads).expect("threads"), expected);
        assert!(RunTimes::of(&threads[..2]).is_err());
    }
}
