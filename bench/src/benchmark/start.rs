//! Measures the time until a proxy is ready, and the latency of the first request to a target.

use std::net::Ipv4Addr;

use anyhow::Context;

use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::{CLIENT, StartableProxy, System};
use super::traffic::rounds;
use super::workload::Service;
use super::{Run, load};
use crate::testbed::process::Process;

/// Unknown targets in a round.
const TARGETS: u32 = 20;
/// The first target of the first round; each has an endpoint of its own.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);

/// Measures the time from exec to ready of each system.
pub(super) fn ready(run: Run<'_>) -> anyhow::Result<Row> {
    let mut starting = Vec::new();
    for sut in run.suts() {
        starting.push((sut, StartableProxy::prepare(run.testbed, sut)?));
    }
    rounds(run, |number, _| {
        let mut round = Round::default();
        for (sut, starting) in &starting {
            let name = format!("start-{}", sut.name().to_lowercase());
            let process = Process::start(&name, &mut starting.command(run.testbed)?)
                .with_context(|| format!("start {sut}, round {}", number + 1))?;
            let event = process.next_event()?;
            let number = |name: &str| -> anyhow::Result<f64> {
                let number = event[name].as_f64();
                number.with_context(|| format!("{sut}: {event}"))
            };
            let sample = Sample::from([
                (Metric::Start, number("seconds")?),
                (Metric::Resident, number("resident")?),
                (Metric::Anonymous, number("anonymous")?),
            ]);
            process.output()?;
            round.samples.insert(*sut, sample);
        }
        Ok(round)
    })
}

/// Measures the first request to each of several targets.
pub(super) fn first_request(run: Run<'_>) -> anyhow::Result<Row> {
    let system = System::start(run.testbed, SystemUnderTest::MeshProxy)?;
    // The first call also opens the connection to the control plane, and is therefore not measured.
    let first = |round: u32| -> anyhow::Result<String> {
        let ip = Ipv4Addr::from(u32::from(FIRST) + round * TARGETS);
        let client = &system.pods.client;
        let mut command = client.command(CLIENT, &run.testbed.programs.bench)?;
        command
            .args(["load", "first", "--targets", &TARGETS.to_string()])
            .args(["--target", &format!("{ip}:{}", Service::Http1.port())]);
        Process::start("first-request", &mut command)?.output()
    };
    first(0)?;
    rounds(run, |number, _| {
        let round = u32::try_from(number)? + 1;
        let outcome = load::parse_bench_load(&first(round)?)?;
        let median = outcome.p50.context("no request was answered")?;
        let sample = Sample::from([(Metric::FirstRequest, median)]);
        Ok(Round {
            samples: [(SystemUnderTest::MeshProxy, sample)].into(),
            failed: [(SystemUnderTest::MeshProxy, outcome.failed)].into(),
            ..Round::default()
        })
    })
}
