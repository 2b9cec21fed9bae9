//! `cargo xtask bench control`: what the controllers cost, in one run against a scripted front of a
//! Kubernetes API server (`mesh-bench kube-api`).
//!
//! The controllers run on one CPU, the front and the watches (`mesh-bench load destinations`) on
//! another. A row during which other programs used the machine is marked as noisy.

mod programs;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use xtask::interrupt::Interrupt;

use self::programs::{Controller, Destinations, KubeApi};
use self::report::{Figure, Report, Row, Unit};
use super::machine::{Noise, NoiseMonitor};
use super::statistics::median;
use crate::kube_api::Population;
use crate::testbed::{Cpus, Programs, Testbed, usage};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ControlOptions {
    /// Measure with a tenth of the watches and without the largest Service
    #[arg(long)]
    quick: bool,
    /// Use the existing programs in target/release
    #[arg(long)]
    no_build: bool,
    /// Directory for table and numbers [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The sizes of a run.
struct Plan {
    /// The cluster of the rows about memory and start.
    population: Population,
    watches: usize,
    /// Endpoints of the watched Service, in one row each.
    endpoints: &'static [u32],
    /// Changes of the Service in a row: an even number, after which all endpoints are ready again.
    changes: u32,
}

const FULL: Plan = Plan {
    population: Population {
        services: 1000,
        pods: 10,
    },
    watches: 1000,
    endpoints: &[100, 1000, 10_000],
    changes: 20,
};
const QUICK: Plan = Plan {
    watches: 100,
    endpoints: &[100, 1000],
    changes: 6,
    ..FULL
};

/// Seconds from a change to the last watch, whatever the number of endpoints.
const MAX_LAST: f64 = 0.25;
/// Seconds until all watches have their endpoints again.
const MAX_STORM: f64 = 5.0;
/// Peak memory while they are sent, as a ratio to the memory before.
const MAX_STORM_MEMORY: f64 = 2.0;

pub(crate) fn run(root: &Path, options: &ControlOptions) -> anyhow::Result<ExitCode> {
    let plan = if options.quick { &QUICK } else { &FULL };
    let cpus = Cpus::choose()?;
    let programs = Programs::controller(root, !options.no_build)?;
    let mut report = Report::new(root, options.quick, &programs.controller, cpus);
    let mut testbed = Testbed::new(programs, cpus, Interrupt::watch()?)?;
    testbed.keep_awake()?;
    for controller in ["destination", "policy"] {
        let row = start(&testbed, plan, controller);
        report.add(row.with_context(|| format!("measure the start of {controller}"))?);
        testbed.check_interrupt()?;
    }
    for endpoints in plan.endpoints {
        for row in fan_out(&testbed, plan, *endpoints)
            .with_context(|| format!("measure watches of {endpoints} endpoints"))?
        {
            report.add(row);
        }
        testbed.check_interrupt()?;
    }
    drop(testbed);
    let directory = options.out.clone();
    report.write(&directory.unwrap_or_else(|| root.join("target/bench")))?;
    Ok(ExitCode::SUCCESS)
}

/// Measures a controller from its start until it has read all objects.
fn start(testbed: &Testbed, plan: &Plan, name: &'static str) -> anyhow::Result<Row> {
    let api = KubeApi::start(testbed, plan.population)?;
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let controller = Controller::start(testbed, name, &api)?;
    let memory = usage::memory(controller.id())?;
    let Population { services, pods } = plan.population;
    Ok(Row {
        title: format!(
            "{name}: start with {services} Services and {} pods",
            services * pods
        ),
        figures: vec![
            Figure::new("until ready", Unit::Seconds, controller.started),
            Figure::new("CPU", Unit::Seconds, usage::run_time(controller.id())?),
            Figure::new("resident memory", Unit::Bytes, memory.resident as f64),
            Figure::new(
                "peak memory",
                Unit::Bytes,
                usage::peak(controller.id())? as f64,
            ),
        ],
        noise: monitor.finish()?,
    })
}

/// Measures changes of one Service that all watch, and their reconnection.
fn fan_out(testbed: &Testbed, plan: &Plan, endpoints: u32) -> anyhow::Result<[Row; 2]> {
    let population = Population {
        services: 1,
        pods: endpoints,
    };
    let api = KubeApi::start(testbed, population)?;
    let controller = Controller::start(testbed, "destination", &api)?;
    let before = usage::memory(controller.id())?.resident as f64;
    let mut watches = Destinations::start(testbed, &api, &controller, plan.watches, endpoints)?;
    // The first change makes what later ones find: the endpoint comes and goes.
    watches.change()?;
    watches.change()?;
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let cpu = usage::run_time(controller.id())?;
    let mut times = Vec::new();
    for _ in 0..plan.changes {
        testbed.check_interrupt()?;
        times.push(watches.change()?);
    }
    let cpu = (usage::run_time(controller.id())? - cpu) / f64::from(plan.changes);
    let noise = monitor.finish()?;
    let middle = |value: fn(&programs::Change) -> f64| {
        let values: Vec<f64> = times.iter().map(value).collect();
        median(&values).context("there was no change")
    };
    let resident = usage::memory(controller.id())?.resident as f64;
    let each = (resident - before) / plan.watches as f64;
    let watchers = format!("{} watches of {endpoints} endpoints", plan.watches);
    let changes = Row {
        title: format!("a change for {watchers}"),
        figures: vec![
            Figure::new("first watch", Unit::Seconds, middle(|change| change.first)?),
            Figure::new(
                "median watch",
                Unit::Seconds,
                middle(|change| change.median)?,
            ),
            Figure::new("last watch", Unit::Seconds, middle(|change| change.last)?)
                .at_most(MAX_LAST),
            Figure::new("CPU of a change", Unit::Seconds, cpu),
            Figure::new("resident memory", Unit::Bytes, resident),
            Figure::new("memory of a watch", Unit::Bytes, each),
        ],
        noise,
    };
    Ok([
        changes,
        storm(testbed, &controller, &mut watches, &watchers)?,
    ])
}

/// Measures all watches closing their connections and opening them again.
fn storm(
    testbed: &Testbed,
    controller: &Controller,
    watches: &mut Destinations,
    watchers: &str,
) -> anyhow::Result<Row> {
    let before = usage::memory(controller.id())?.resident as f64;
    usage::reset_peak(controller.id())?;
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let cpu = usage::run_time(controller.id())?;
    let synced = watches.reconnect()?;
    let cpu = usage::run_time(controller.id())? - cpu;
    let noise: Noise = monitor.finish()?;
    let peak = usage::peak(controller.id())? as f64;
    Ok(Row {
        title: format!("reconnection of {watchers}"),
        figures: vec![
            Figure::new("until all have them", Unit::Seconds, synced).at_most(MAX_STORM),
            Figure::new("CPU", Unit::Seconds, cpu),
            Figure::new("peak memory", Unit::Bytes, peak),
            Figure::new("peak memory to memory before", Unit::Ratio, peak / before)
                .at_most(MAX_STORM_MEMORY),
        ],
        noise,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_endpoints_are_ready_after_the_changes() {
        for plan in [FULL, QUICK] {
            assert_eq!(plan.changes % 2, 0);
        }
    }
}
