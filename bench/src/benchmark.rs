//! `cargo xtask bench`: compares the cost of the proxy with Envoy, HAProxy and a direct connection,
//! in one run on this machine.
//!
//! All systems run at the same time, each in network namespaces of its own. Load alternates between
//! them, in forward and backward order, and the cost of a proxy is its run time according to the
//! scheduler. A round does not count if other programs used the machine meanwhile. `workload` lists
//! the workloads and their goals; published results are in `docs/bench`. The benchmark removes
//! everything that it created, also after a failure.

mod access_log;
mod alternation;
mod changes;
mod control_plane;
mod load;
mod machine;
mod memory;
mod metric;
mod metrics_api;
mod plan;
mod profile;
mod redirection;
mod report;
mod retries;
mod row;
mod scrape;
pub(crate) mod soak;
mod start;
mod statistics;
mod system;
mod tap;
mod telemetry;
mod tools;
mod tracing;
mod traffic;
mod with_and_without;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use xtask::interrupt::Interrupt;
use xtask::workspace;

use crate::testbed::{Cpus, ProxyPair, Testbed};
use plan::{Plan, Run};
use profile::Profile;
use report::{Measured, Report};
use row::Row;
use traffic::Systems;
use workload::{Kind, WORKLOADS, Workload};

pub(crate) use metric::SystemUnderTest;

#[derive(Debug, Clone, Default, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchmarkOptions {
    #[command(subcommand)]
    other: Option<OtherBenchmark>,
    /// Run only this workload; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Vec<String>,
    /// Compare only with this system; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Vec<SystemUnderTest>,
    /// Run few short rounds, without the long workloads
    #[arg(long)]
    pub(crate) quick: bool,
    /// Also count rounds while other programs used the machine. Such results are not publishable;
    /// they show that the benchmark works
    #[arg(long)]
    pub(crate) noisy: bool,
    /// Number of rounds that must count [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Seconds of load on each system in a round [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u32>,
    /// Also profile mesh-proxy under each load with perf
    #[arg(long)]
    pub(crate) profile: bool,
    /// Use the existing programs in target/release
    #[arg(long)]
    pub(crate) no_build: bool,
    /// Directory for table and chart; the numbers of all rounds are always in target/bench
    /// [default: target/bench]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Only list the workloads and their goals
    #[arg(long)]
    pub(crate) list: bool,
}

/// Measurements of other parts than the proxy.
#[derive(Debug, Clone, clap::Subcommand)]
enum OtherBenchmark {
    /// Measure the controllers against a scripted front of an API server
    Control(control_plane::ControlOptions),
}

/// Rounds that count, and seconds of load on each system in a round. A confidence interval needs
/// seven rounds; three seconds are thousands of operations of the slowest system.
const FULL: (usize, u32) = (7, 3);
/// The default directory of results, below the checkout.
const DIRECTORY: &str = "target/bench";

/// The values of `--quick`: too few rounds to publish.
const QUICK: (usize, u32) = (3, 1);

pub(crate) fn run(root: &Path, options: &BenchmarkOptions) -> anyhow::Result<ExitCode> {
    if let Some(OtherBenchmark::Control(options)) = &options.other {
        return control_plane::run(root, options);
    }
    if options.list {
        xtask::print_lines(&report::list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let workloads = chosen(&options.workload)?;
    if !workspace::is_root() {
        bail!(
            "a benchmark creates network namespaces, cgroups and BPF programs and needs root: run it with sudo"
        );
    }
    if options.profile && !profile::is_possible() {
        bail!("--profile needs perf, which is not installed; Debian's package is linux-perf");
    }
    let plan = Plan::new(options);
    let cpus = Cpus::choose()?;
    let programs = tools::prepare(root, &plan.suts, !options.no_build)?;
    let has_metrics_api =
        |workload: &&Workload| workload.kind == Kind::MetricsApi && runs(workload, options);
    if workloads.iter().any(has_metrics_api) {
        tools::prepare_metrics_api(root, !options.no_build)?;
    }
    let interrupt = Interrupt::watch()?;
    let mut report = Report::new(root, &plan, &programs, cpus);
    let mut testbed = Testbed::new(programs, cpus, interrupt)?;
    testbed.keep_awake()?;
    let mut systems = Systems::new();
    for workload in workloads {
        if !runs(workload, options) {
            println!(
                "\n== {}  ({}): skipped by --quick",
                workload.title, workload.name
            );
            continue;
        }
        let begun = Instant::now();
        let run = Run {
            testbed: &testbed,
            plan: &plan,
            workload,
        };
        let outcome = run.measure(&mut systems);
        testbed.check_interrupt()?;
        let profile = match (&outcome, options.profile) {
            (Ok(_), true) => run.profile(&mut systems)?,
            _ => None,
        };
        let measured = Measured {
            workload,
            outcome,
            profile,
            took: begun.elapsed(),
        };
        measured.print();
        report.rows.push(measured);
    }
    drop(systems);
    drop(testbed);
    let raw = root.join(DIRECTORY);
    report.write(options.out.as_ref().unwrap_or(&raw), &raw)?;
    Ok(report.finish())
}

/// Returns the workloads with these names, or all if there are none.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Workload>> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let found = names.iter().map(|name| {
        workload::find(name).ok_or_else(|| {
            anyhow::anyhow!("unknown workload {name:?}; `cargo xtask bench --list` lists them")
        })
    });
    found.collect()
}

/// Returns whether a run with these options does not skip the workload.
fn runs(workload: &Workload, options: &BenchmarkOptions) -> bool {
    !options.quick || !workload.is_long() || !options.workload.is_empty()
}

impl Run<'_> {
    fn measure(self, systems: &mut Systems) -> anyhow::Result<Row> {
        if !matches!(self.workload.kind, Kind::Traffic(..)) {
            // The other kinds start processes under the same names and need an idle machine.
            systems.clear();
        }
        match self.workload.kind {
            Kind::Traffic(service, load) => {
                traffic::row(self, systems, self.testbed.cpus, service, load)
            }
            Kind::TwoWorkers(service, load) => {
                let cpus = self.testbed.cpus.with_two_workers();
                traffic::row(self, &mut Systems::new(), cpus, service, load)
            }
            Kind::Idle(service, held, count) => memory::idle(self, service, held, count),
            Kind::Targets => memory::targets(self),
            Kind::Changes => changes::row(self),
            Kind::Start => start::ready(self),
            Kind::FirstRequest => start::first_request(self),
            Kind::Redirection => redirection::row(self),
            Kind::Telemetry => telemetry::row(self),
            Kind::Tracing => tracing::row(self),
            Kind::AccessLog => access_log::row(self),
            Kind::Retries => retries::row(self),
            Kind::Tap => tap::row(self),
            Kind::Scrape => scrape::row(self),
            Kind::MetricsApi => metrics_api::row(self),
        }
    }

    /// Profiles mesh-proxy in a workload of kind `Traffic`; returns `None` for other kinds.
    fn profile(self, systems: &mut Systems) -> anyhow::Result<Option<ProxyPair<Profile>>> {
        let system = systems.get_mut(&SystemUnderTest::MeshProxy);
        let (Kind::Traffic(service, load), Some(system)) = (self.workload.kind, system) else {
            return Ok(None);
        };
        profile::record(self.testbed, system, service, load, self.plan.seconds).map(Some)
    }

    /// Returns the systems to measure.
    fn suts(self) -> Vec<SystemUnderTest> {
        self.plan.suts(self.workload)
    }
}

impl Plan {
    fn new(options: &BenchmarkOptions) -> Self {
        let (rounds, seconds) = if options.quick { QUICK } else { FULL };
        let all = [
            SystemUnderTest::Direct,
            SystemUnderTest::Envoy,
            SystemUnderTest::Haproxy,
            SystemUnderTest::Iptables,
        ];
        let mut suts = if options.peer.is_empty() {
            all.to_vec()
        } else {
            options.peer.clone()
        };
        suts.push(SystemUnderTest::MeshProxy);
        suts.sort_unstable();
        suts.dedup();
        Self {
            suts,
            rounds: options.rounds.unwrap_or(rounds),
            seconds: options.seconds.unwrap_or(seconds),
            quick: options.quick,
            with_noisy: options.noisy,
        }
    }

    /// The requested systems that a workload compares, and mesh-proxy.
    fn suts(&self, workload: &Workload) -> Vec<SystemUnderTest> {
        let measured = |sut: &&SystemUnderTest| {
            **sut == SystemUnderTest::MeshProxy || workload.suts.contains(sut)
        };
        self.suts.iter().filter(measured).copied().collect()
    }

    /// A run stops after this many rounds even if too few of them were quiet.
    fn attempts(&self) -> usize {
        self.rounds * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> BenchmarkOptions {
        BenchmarkOptions::default()
    }

    #[test]
    fn workloads_are_selected_by_name() {
        assert_eq!(chosen(&[]).expect("all").len(), WORKLOADS.len());
        let one = chosen(&["http2".to_owned()]).expect("one");
        assert_eq!(one[0].name, "http2");
        let error = chosen(&["http9".to_owned()]).expect_err("none");
        assert!(error.to_string().contains("--list"), "{error}");
    }

    #[test]
    fn mesh_proxy_is_always_measured() {
        let plan = Plan::new(&BenchmarkOptions {
            peer: vec![SystemUnderTest::Haproxy],
            ..options()
        });
        let http1 = workload::find("http1-64").expect("it exists");
        assert_eq!(
            plan.suts(http1),
            [SystemUnderTest::MeshProxy, SystemUnderTest::Haproxy]
        );
        let targets = workload::find("targets").expect("it exists");
        assert_eq!(plan.suts(targets), [SystemUnderTest::MeshProxy]);
    }

    #[test]
    fn full_run_has_at_least_seven_rounds() {
        assert!(Plan::new(&options()).rounds >= 7);
        let quick = Plan::new(&BenchmarkOptions {
            quick: true,
            rounds: Some(5),
            ..options()
        });
        assert_eq!((quick.rounds, quick.seconds), (5, QUICK.1));
    }
}
