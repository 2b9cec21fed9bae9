//! Measures the cost of redirection alone: a listener takes the place of the proxy, and clients run
//! in the same pod.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::CLIENT;
use super::traffic::rounds;
use super::workload::Service;
use super::{Run, load};
use crate::testbed::pod::{Container, CpuRole, Pod, Pods};
use crate::testbed::process::{Process, run};
use crate::testbed::proxies::{PROXY_CONTAINER, PROXY_USER};
use crate::testbed::{Agent, DIRECTORY, SkippedPorts, Testbed, Tier};

/// The address that the agent redirects to, and the container that is allowed to listen there.
const OUTBOUND: &str = "127.0.0.1:4140";
const LISTENER: Container<'_> = Container {
    name: PROXY_CONTAINER,
    cpu_role: CpuRole::Load,
    user: Some(PROXY_USER),
};
/// Additional enrolled pods, nearly the capacity of the map. A Kubernetes node runs at most 110 by
/// default, and seldom more than 250.
const DUMMY_PODS: u32 = 10_000;

/// A pair of pods whose connections are redirected in one mode, or not at all.
struct RedirectMode {
    sut: SystemUnderTest,
    pods: Pods,
    _listener: Process,
    agent: Option<Agent>,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let mut modes = Vec::new();
    for sut in run.suts() {
        let mode = RedirectMode::start(run.testbed, sut);
        modes.push(mode.with_context(|| format!("start {sut}"))?);
    }
    let mut row = rounds(run, |number, _| {
        let mut round = Round::default();
        let forwards = number % 2 == 0;
        for index in 0..modes.len() {
            let mode = if forwards {
                index
            } else {
                modes.len() - 1 - index
            };
            modes[mode].measure(run, &mut round)?;
        }
        Ok(round)
    })?;
    let with_others = with_dummy_pods(run, &mut modes)?;
    for (round, with_others) in row.rounds.iter_mut().zip(with_others) {
        for (sut, sample) in with_others.samples {
            let added = sample.get(&Metric::AddedCpu).copied();
            if let (Some(added), Some(own)) = (added, round.samples.get_mut(&sut)) {
                own.insert(Metric::AddedCpuManyPods, added);
            }
        }
    }
    Ok(row)
}

/// Repeats the measurement with many other pods enrolled. iptables rules exist only in the pod's
/// own namespace, so that other pods do not affect them.
fn with_dummy_pods(run: Run<'_>, modes: &mut [RedirectMode]) -> anyhow::Result<Vec<Round>> {
    let full = modes
        .iter_mut()
        .find(|mode| mode.sut == SystemUnderTest::MeshProxy);
    if let Some(agent) = full.and_then(|mode| mode.agent.as_mut()) {
        agent
            .enrol_dummy_pods(DUMMY_PODS)
            .context("enrol additional pods")?;
    }
    let row = rounds(run, |_, _| {
        let mut round = Round::default();
        for mode in &*modes {
            run.testbed.check_interrupt()?;
            mode.measure(run, &mut round)?;
        }
        Ok(round)
    })?;
    Ok(row.rounds)
}

impl RedirectMode {
    fn start(testbed: &Testbed, sut: SystemUnderTest) -> anyhow::Result<Self> {
        let pods = Pods::new(&sut.name().to_lowercase(), sut as u8, testbed.cpus)?;
        let tier = match sut {
            SystemUnderTest::MeshProxy => Some(Tier::Full),
            SystemUnderTest::Iptables => Some(Tier::Iptables),
            _ => None,
        };
        let start = |tier| Agent::start(testbed, &pods, tier, &SkippedPorts::default());
        let agent = tier.map(start).transpose()?;
        let mut command = pods.client.command(LISTENER, &testbed.programs.bench)?;
        command.args(["serve", "--echo", OUTBOUND]);
        let listener = Process::start(&format!("{}-listener", pods.client.name), &mut command)?;
        listener.next_event()?;
        Ok(Self {
            sut,
            pods,
            _listener: listener,
            agent,
        })
    }

    /// Adds the sample of this mode to a round.
    fn measure(&self, run: Run<'_>, round: &mut Round) -> anyhow::Result<()> {
        let pod = &self.pods.client;
        let target = match self.sut {
            SystemUnderTest::Direct => OUTBOUND.to_owned(),
            // No server listens on this address: only redirected connections are accepted.
            _ => format!("10.96.0.1:{}", Service::Echo.port()),
        };
        let mut command = pod.command(CLIENT, &run.testbed.programs.bench)?;
        command.args(["load", "connect", "--target", &target]);
        command.args(["--seconds", &run.plan.seconds.to_string()]);
        let before = cpu(pod)?;
        let name = format!("{}-connect", pod.name);
        let outcome = load::parse_bench_load(&Process::start(&name, &mut command)?.output()?)?;
        let used = cpu(pod)? - before;
        let sample = Sample::from([
            (Metric::CpuBoth, used / outcome.operations),
            (Metric::Conntrack, conntrack(pod)?),
        ]);
        round.samples.insert(self.sut, sample);
        round.failed.insert(self.sut, outcome.failed);
        Ok(())
    }
}

/// Returns the CPU seconds of all processes of a pod, exited ones included.
fn cpu(pod: &Pod) -> anyhow::Result<f64> {
    super::machine::cgroup_time(&pod.cgroup)
}

/// Returns the number of connections that the kernel tracks for a pod. The table exists only if a
/// rule requires connection tracking.
fn conntrack(pod: &Pod) -> anyhow::Result<f64> {
    const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    if !Path::new(COUNT).exists() {
        return Ok(0.0);
    }
    let file = Path::new(DIRECTORY).join("conntrack");
    let read = format!("cat {COUNT} > {}", file.display());
    run(Command::new("ip").args(["netns", "exec", &pod.name, "sh", "-c", &read]))?;
    let count = fs::read_to_string(file)?;
    count.trim().parse().context("parse the conntrack count")
}
