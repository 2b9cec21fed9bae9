//! How long it takes until a proxy is ready, and until it has found its way to a target it did not
//! know.

use std::net::Ipv4Addr;

use anyhow::Context;

use super::{
    Plan, load,
    metric::{Metric, Peer},
    row::{Round, Row, Sample},
    system::{CLIENT, Starting, System},
    traffic::rounds,
    workload::{Service, Workload},
};
use crate::testbed::{Lab, process::Process};

/// Unknown targets in a round.
const TARGETS: u32 = 20;
/// The first target of the first round; each has an endpoint of its own.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);

/// From exec to ready, each peer beside what it needs.
pub(super) fn ready(lab: &Lab, plan: &Plan, workload: &'static Workload) -> anyhow::Result<Row> {
    let mut starting = Vec::new();
    for peer in plan.peers(workload) {
        starting.push((peer, Starting::prepare(lab, peer)?));
    }
    rounds(lab, plan, workload, |number, _| {
        let mut round = Round::default();
        for (peer, starting) in &starting {
            let name = format!("start-{}", peer.name().to_lowercase());
            let process = Process::start(&name, &mut starting.command(lab)?)
                .with_context(|| format!("start {peer}, round {}", number + 1))?;
            let said = process.event()?;
            let number = |name: &str| -> anyhow::Result<f64> {
                said[name]
                    .as_f64()
                    .with_context(|| format!("{peer}: {said}"))
            };
            let sample = Sample::from([
                (Metric::Start, number("seconds")?),
                (Metric::Resident, number("resident")?),
                (Metric::Anonymous, number("anonymous")?),
            ]);
            process.output()?;
            round.samples.insert(*peer, sample);
        }
        Ok(round)
    })
}

/// The first request to each of several targets.
pub(super) fn first_request(
    lab: &Lab,
    plan: &Plan,
    workload: &'static Workload,
) -> anyhow::Result<Row> {
    let system = System::start(lab, Peer::Ours)?;
    // A proxy is never asked for the first time about nothing at all: its control plane has a
    // connection by then.
    let first = |round: u32| -> anyhow::Result<String> {
        let ip = Ipv4Addr::from(u32::from(FIRST) + round * TARGETS);
        let mut command = system.pods.client.command(CLIENT, &lab.programs.bench)?;
        command
            .args(["load", "first", "--targets", &TARGETS.to_string()])
            .args(["--target", &format!("{ip}:{}", Service::Http1.port())]);
        Process::start("first-request", &mut command)?.output()
    };
    first(0)?;
    rounds(lab, plan, workload, |number, _| {
        let round = u32::try_from(number)? + 1;
        let outcome = load::own(&first(round)?)?;
        let median = outcome.p50.context("no request was answered")?;
        Ok(Round {
            samples: [(Peer::Ours, Sample::from([(Metric::FirstRequest, median)]))].into(),
            failed: [(Peer::Ours, outcome.failed)].into(),
            ..Round::default()
        })
    })
}
