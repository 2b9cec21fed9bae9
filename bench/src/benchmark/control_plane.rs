//! `cargo xtask bench control`: the cost of the controllers, in one run with Istio's control plane,
//! each against a scripted front of a Kubernetes API server (`mesh-bench kube-api`).
//!
//! The controllers run on one CPU, the fronts and the watches (`mesh-bench load destinations` and
//! its like) on another. A row is marked as noisy if other programs used the machine meanwhile.

mod clusters;
mod command;
mod fan_out;
mod identity;
mod injector;
mod istio;
mod plot;
mod programs;
mod report;
mod start;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use xtask::interrupt::Interrupt;

use self::report::Report;
use crate::kube_api::Population;
use crate::testbed::{Cpus, Programs, Testbed};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ControlOptions {
    /// Measure with a tenth of the watches and without the largest Service
    #[arg(long)]
    quick: bool,
    /// Measure instead how the controllers grow with the cluster, to 100,000 pods, and draw it
    #[arg(long)]
    sweep: bool,
    /// Measure instead how destination and service mirrors grow with the number of linked clusters,
    /// to 200, and draw it
    #[arg(long, conflicts_with = "sweep")]
    clusters: bool,
    /// Measure our controllers alone, without Istio's, which is built from its Go module
    #[arg(long)]
    no_peer: bool,
    /// Use the existing programs in target/release
    #[arg(long)]
    no_build: bool,
    /// Directory for table and numbers [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Plan {
    quick: bool,
    with_istio: bool,
    /// The cluster of the row about memory and start.
    population: Population,
    starts: u32,
    watches: usize,
    /// Endpoints of the watched Service, in two rows each.
    endpoints: &'static [u32],
    /// Rounds of a row, and changes of each control plane in a round: an even number, so that all
    /// endpoints are ready again at its end.
    rounds: u32,
    changes: u32,
    storms: u32,
    breadth: Breadth,
    /// Seconds of requests to identity and injector in a round.
    seconds: u32,
}

/// The row with many Services.
#[derive(Clone, Copy)]
struct Breadth {
    population: Population,
    /// Services that each client watches.
    each: usize,
    /// Changes a second.
    rate: u32,
    seconds: u32,
}

/// The control planes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Ours,
    Istio,
}

const FULL: Plan = Plan {
    quick: false,
    with_istio: true,
    population: Population {
        services: 1000,
        pods: 10,
    },
    starts: 3,
    watches: 1000,
    endpoints: &[100, 1000, 10_000],
    rounds: 4,
    changes: 2,
    storms: 3,
    breadth: Breadth {
        // Each Service changes every twenty seconds. Istio collects changes for ten at most.
        population: Population {
            services: 2000,
            pods: 5,
        },
        each: 50,
        rate: 100,
        seconds: 30,
    },
    seconds: 5,
};
const QUICK: Plan = Plan {
    quick: true,
    starts: 1,
    watches: 100,
    endpoints: &[100, 1000],
    rounds: 2,
    storms: 1,
    breadth: Breadth {
        seconds: 10,
        ..FULL.breadth
    },
    seconds: 1,
    ..FULL
};

/// Milliseconds that an API server takes for a TokenReview in the slower of the two rows.
const TOKEN_REVIEW: u32 = 20;
/// Resident memory as a ratio to Istio's.
const MAX_MEMORY_OF_ISTIO: f64 = 0.25;

impl Plan {
    fn systems(&self) -> impl Iterator<Item = System> {
        let istio = self.with_istio.then_some(System::Istio);
        std::iter::once(System::Ours).chain(istio)
    }
}

pub(crate) fn run(root: &Path, options: &ControlOptions) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        // Istio's control plane links no clusters in this way.
        with_istio: !options.no_peer && !options.clusters,
        ..if options.quick { QUICK } else { FULL }
    };
    let cpus = Cpus::choose()?;
    let programs = Programs::controller(root, !options.no_build)?;
    let mut report = Report::new(root, options.quick, &programs.controller, cpus);
    if plan.with_istio {
        istio::PROGRAM.install(&istio::tools(root))?;
        report.add_version("Istio", istio::PROGRAM.version);
    }
    let mut testbed = Testbed::new(programs, cpus, Interrupt::watch()?)?;
    testbed.keep_awake()?;
    let directory = options.out.clone();
    let directory = directory.unwrap_or_else(|| root.join("target/bench"));
    if options.sweep {
        sweep::run(&testbed, &plan, &mut report, &directory)?;
    } else if options.clusters {
        clusters::run(&testbed, plan.quick, &mut report, &directory)?;
    } else {
        rows(&testbed, &plan, &mut report)?;
        report.write(&directory, "control", None)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(testbed: &Testbed, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.add(start::row(testbed, plan).context("measure starts")?);
    for endpoints in plan.endpoints {
        for row in fan_out::rows(testbed, plan, *endpoints)
            .with_context(|| format!("measure watches of {endpoints} endpoints"))?
        {
            report.add(row);
        }
        testbed.check_interrupt()?;
    }
    report.add(fan_out::breadth(testbed, plan).context("measure changes of many Services")?);
    for delay in [0, TOKEN_REVIEW] {
        let row = identity::row(testbed, plan, delay);
        report.add(row.context("measure requests for certificates")?);
        testbed.check_interrupt()?;
    }
    report.add(injector::row(testbed, plan).context("measure reviews of pods")?);
    Ok(())
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

    #[test]
    fn service_of_many_does_not_change_before_istio_has_sent_its_last_change() {
        for Breadth {
            population, rate, ..
        } in [FULL.breadth, QUICK.breadth]
        {
            assert!(population.services / rate > 10);
        }
    }
}
