//! `cargo xtask bench`: what the proxy costs, beside Envoy, HAProxy and nothing at all, in one run
//! on this machine.
//!
//! All systems are alive at the same time, in network namespaces of their own; load moves between
//! them, forwards and backwards, and what a proxy costs is the time the scheduler let it run. A
//! round during which somebody else used the machine does not count. `workload` is the table of
//! what is measured and what must hold, `docs/bench` is where published results are. Whatever
//! happens, everything is removed again.

mod changes;
mod load;
mod machine;
mod memory;
mod metric;
mod profile;
mod redirection;
mod report;
mod row;
pub(crate) mod soak;
mod start;
mod statistics;
mod system;
mod tools;
mod traffic;
mod workload;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::bail;
use xtask::{interrupt::Interrupt, workspace};

use crate::testbed::{Cpus, ProxyPair, Testbed};
pub(crate) use metric::SystemUnderTest;
use profile::Profile;
use report::{Measured, Report};
use row::Row;
use traffic::Systems;
use workload::{Kind, WORKLOADS, Workload};

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct BenchmarkOptions {
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Vec<String>,
    /// Only this peer beside ours; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Vec<SystemUnderTest>,
    /// A look in five minutes: few short rounds, and without the workloads that take long
    #[arg(long)]
    pub(crate) quick: bool,
    /// Count rounds too during which the machine did other things. Such results are no results;
    /// they show that everything works
    #[arg(long)]
    pub(crate) noisy: bool,
    /// Rounds that must count [default: 7, or 3 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Seconds of load on each peer in a round [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u32>,
    /// Also show where our proxies spend their time under each load, by perf
    #[arg(long)]
    pub(crate) profile: bool,
    /// Measure the programs as they are in target/release
    #[arg(long)]
    pub(crate) no_build: bool,
    /// Where table, raw numbers and chart are written to [default: target/bench]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Only name the workloads and what must hold
    #[arg(long)]
    pub(crate) list: bool,
}

/// Rounds that count, and seconds of load on each peer in a round. Seven rounds are what an
/// interval needs; two seconds are thousands of operations of the slowest peer.
const FULL: (usize, u32) = (7, 3);
/// For a look in five minutes: too few rounds to publish.
const QUICK: (usize, u32) = (3, 1);

/// How much is measured, and of what.
struct Plan {
    suts: Vec<SystemUnderTest>,
    rounds: usize,
    seconds: u32,
    quick: bool,
    with_noisy: bool,
}

pub(crate) fn run(root: &Path, options: &BenchmarkOptions) -> anyhow::Result<ExitCode> {
    if options.list {
        xtask::print_lines(&report::list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let workloads = chosen(&options.workload)?;
    if !workspace::is_root() {
        bail!(
            "a benchmark makes network namespaces, cgroups and BPF programs, which needs root: run it with sudo"
        );
    }
    if options.profile && !profile::is_possible() {
        bail!("there is no perf here, which --profile asks; Debian's package is linux-perf");
    }
    let plan = Plan::new(options);
    let cpus = Cpus::choose()?;
    let programs = tools::prepare(root, &plan.suts, !options.no_build)?;
    let interrupt = Interrupt::watch()?;
    let mut report = Report::new(root, &plan, &programs, cpus);
    let mut testbed = Testbed::new(programs, cpus, interrupt)?;
    testbed.keep_awake()?;
    let mut systems = Systems::new();
    for workload in workloads {
        if plan.quick && workload.is_long() && options.workload.is_empty() {
            println!(
                "\n== {}  ({}): left out by --quick",
                workload.title, workload.name
            );
            continue;
        }
        let begun = Instant::now();
        let outcome = measure(&testbed, &mut systems, &plan, workload);
        testbed.check_interrupt()?;
        let profile = match (&outcome, options.profile) {
            (Ok(_), true) => profile(&testbed, &mut systems, &plan, workload)?,
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
    report.write(&directory(root, options))?;
    Ok(report.finish())
}

/// The workloads of these names; all when none is named.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Workload>> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let found = names.iter().map(|name| {
        workload::find(name).ok_or_else(|| {
            anyhow::anyhow!("there is no workload {name:?}; `cargo xtask bench --list` names them")
        })
    });
    found.collect()
}

fn directory(root: &Path, options: &BenchmarkOptions) -> PathBuf {
    match &options.out {
        Some(directory) => directory.clone(),
        None => root.join("target/bench"),
    }
}

fn measure(
    testbed: &Testbed,
    systems: &mut Systems,
    plan: &Plan,
    workload: &'static Workload,
) -> anyhow::Result<Row> {
    if !matches!(workload.kind, Kind::Traffic(..)) {
        // The others start processes of their own under the same names, and want the machine for
        // themselves.
        systems.clear();
    }
    match workload.kind {
        Kind::Traffic(service, load) => {
            traffic::row(testbed, systems, plan, workload, service, load)
        }
        Kind::Idle(service, held, count) => {
            memory::idle(testbed, plan, workload, service, held, count)
        }
        Kind::Targets => memory::targets(testbed, plan, workload),
        Kind::Changes => changes::row(testbed, plan, workload),
        Kind::Start => start::ready(testbed, plan, workload),
        Kind::FirstRequest => start::first_request(testbed, plan, workload),
        Kind::Redirection => redirection::row(testbed, plan, workload),
    }
}

/// Where our proxies spend their time in a workload that is load.
fn profile(
    testbed: &Testbed,
    systems: &mut Systems,
    plan: &Plan,
    workload: &Workload,
) -> anyhow::Result<Option<ProxyPair<Profile>>> {
    match (workload.kind, systems.get_mut(&SystemUnderTest::MeshProxy)) {
        (Kind::Traffic(service, load), Some(system)) => {
            profile::record(testbed, system, service, load, plan.seconds).map(Some)
        }
        _ => Ok(None),
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

    /// Those of a workload that were asked for, and ours.
    fn suts(&self, workload: &Workload) -> Vec<SystemUnderTest> {
        let measured = |sut: &&SystemUnderTest| {
            **sut == SystemUnderTest::MeshProxy || workload.suts.contains(sut)
        };
        self.suts.iter().filter(measured).copied().collect()
    }

    /// So many rounds are tried before the machine is called noisy.
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
