//! What redirection adds to a connection, alone: no proxy, only a listener in its place, and
//! clients inside the same pod.

use std::{fs, path::Path, process::Command};

use anyhow::Context;

use super::{
    Plan, load,
    metric::{Metric, Peer},
    row::{Round, Row, Sample},
    system::CLIENT,
    traffic::rounds,
    workload::{Service, Workload},
};
use crate::testbed::{
    Agent, Lab, Skipped, Tier,
    pod::{self, Container, Pod, Pods, Side},
    process::{Process, run},
};

/// Where the agent redirects to, and who may listen there.
const OUTBOUND: &str = "127.0.0.1:4140";
const LISTENER: Container<'_> = Container {
    name: "linkerd-proxy",
    side: Side::Load,
    user: Some(2102),
};
/// Pods besides the two that are there: nearly as many as the table holds. A node of Kubernetes has
/// 110, and seldom more than 250.
const CROWD: u32 = 10_000;

/// A pod whose connections are redirected in one way, or not.
struct Way {
    peer: Peer,
    pods: Pods,
    _listener: Process,
    agent: Option<Agent>,
}

pub(super) fn row(lab: &Lab, plan: &Plan, workload: &'static Workload) -> anyhow::Result<Row> {
    let mut ways = Vec::new();
    for peer in plan.peers(workload) {
        ways.push(Way::start(lab, peer).with_context(|| format!("start {peer}"))?);
    }
    let mut row = rounds(lab, plan, workload, |number, _| {
        let mut round = Round::default();
        let forwards = number % 2 == 0;
        for index in 0..ways.len() {
            let way = if forwards {
                index
            } else {
                ways.len() - 1 - index
            };
            let (sample, failed) = ways[way].measure(lab, plan.seconds)?;
            round.samples.insert(ways[way].peer, sample);
            round.failed.insert(ways[way].peer, failed);
        }
        Ok(round)
    })?;
    let crowded = with_crowd(lab, plan, workload, &mut ways)?;
    for (round, crowded) in row.rounds.iter_mut().zip(crowded) {
        for (peer, sample) in crowded.samples {
            let added = sample.get(&Metric::AddedCpu).copied();
            if let (Some(added), Some(own)) = (added, round.samples.get_mut(&peer)) {
                own.insert(Metric::AddedCpuCrowd, added);
            }
        }
    }
    Ok(row)
}

/// The same again where very many other pods are enrolled. Of an iptables pod nothing is anywhere
/// but in itself, so that there is nothing to add for it.
fn with_crowd(
    lab: &Lab,
    plan: &Plan,
    workload: &'static Workload,
    ways: &mut [Way],
) -> anyhow::Result<Vec<Round>> {
    let full = ways.iter_mut().find(|way| way.peer == Peer::Ours);
    if let Some(agent) = full.and_then(|way| way.agent.as_mut()) {
        agent.crowd(CROWD).context("enrol a crowd of pods")?;
    }
    let row = rounds(lab, plan, workload, |_, _| {
        let mut round = Round::default();
        for way in &*ways {
            lab.check_interrupt()?;
            let (sample, failed) = way.measure(lab, plan.seconds)?;
            round.samples.insert(way.peer, sample);
            round.failed.insert(way.peer, failed);
        }
        Ok(round)
    })?;
    Ok(row.rounds)
}

impl Way {
    fn start(lab: &Lab, peer: Peer) -> anyhow::Result<Self> {
        let pods = Pods::new(&peer.name().to_lowercase(), peer as u8, lab.cpus)?;
        let agent = match peer {
            Peer::Ours => Some(Agent::start(lab, &pods, Tier::Full, &Skipped::default())?),
            Peer::Iptables => Some(Agent::start(
                lab,
                &pods,
                Tier::Iptables,
                &Skipped::default(),
            )?),
            _ => None,
        };
        let mut command = pods.client.command(LISTENER, &lab.programs.bench)?;
        command.args(["serve", "--echo", OUTBOUND]);
        let listener = Process::start(&format!("{}-listener", pods.client.name), &mut command)?;
        listener.event()?;
        Ok(Self {
            peer,
            pods,
            _listener: listener,
            agent,
        })
    }

    fn measure(&self, lab: &Lab, seconds: u32) -> anyhow::Result<(Sample, u64)> {
        let pod = &self.pods.client;
        let target = match self.peer {
            Peer::Direct => OUTBOUND.to_owned(),
            // Nobody is there: only what is redirected gets an answer.
            _ => format!("10.96.0.1:{}", Service::Echo.port()),
        };
        let mut command = pod.command(CLIENT, &lab.programs.bench)?;
        command.args(["load", "connect", "--target", &target]);
        command.args(["--seconds", &seconds.to_string()]);
        let before = cpu(pod)?;
        let name = format!("{}-connect", pod.name);
        let outcome = load::own(&Process::start(&name, &mut command)?.output()?)?;
        let used = cpu(pod)? - before;
        let mut sample = Sample::from([(Metric::CpuBoth, used / outcome.operations)]);
        sample.insert(Metric::Conntrack, conntrack(pod)?);
        Ok((sample, outcome.failed))
    }
}

/// Seconds that all processes of a pod have run, ended ones included.
fn cpu(pod: &Pod) -> anyhow::Result<f64> {
    super::machine::cgroup_time(&pod.cgroup)
}

/// Connections that the kernel tracks for a pod. Where nothing asked for tracking there is no
/// table.
fn conntrack(pod: &Pod) -> anyhow::Result<f64> {
    const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    if !Path::new(COUNT).exists() {
        return Ok(0.0);
    }
    let file = Path::new(pod::FOLDER).join("conntrack");
    let read = format!("cat {COUNT} > {}", file.display());
    run(Command::new("ip").args(["netns", "exec", &pod.name, "sh", "-c", &read]))?;
    let count = fs::read_to_string(file)?;
    count.trim().parse().context("a count of connections")
}
