//! Compares load at a fixed rate while the server's pod is tapped and while it is not.
//!
//! The tap is that of the tap service: its identity, mutual TLS, and a limit of requests in each
//! second. Each request is reported by three events. The limit makes 100 events: by that of
//! `meshctl viz tap`, 100 requests, one of fifty would be reported, and p99 would be among them.

use std::net::SocketAddr;

use anyhow::{Context, bail};

use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::System;
use super::traffic::rounds;
use super::with_and_without::Variant;
use super::workload::{Load, Service};
use super::{Run, load};
use crate::testbed::pod::{Container, CpuRole};
use crate::testbed::process::Process;
use crate::testbed::proxies::{PROXY_CONTAINER, PROXY_USER, ProxySettings};
use crate::testbed::{SERVER, TAP, Testbed};

const RATE: Load = Load::FixedRate { rate: 5000 };
const OBSERVER: (&str, &str) = ("LINKERD2_PROXY_TAP_SVC_NAME", TAP);
const PORT: u16 = 4190;
/// So many times the rounds of other workloads: p99 of a few seconds varies.
const MORE_ROUNDS: usize = 4;
/// Requests that are reported each second.
const LIMIT: u32 = 34;
/// A slower tap would measure too little.
const LEAST: f64 = 0.8 * LIMIT as f64;
/// The tap service connects through a proxy of its own. The agent does not redirect this container,
/// so that the tap does not pass the proxy of the clients under load.
const CLIENT: Container<'_> = Container {
    name: PROXY_CONTAINER,
    cpu_role: CpuRole::Load,
    user: Some(PROXY_USER),
};

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let settings = ProxySettings {
        environment: vec![OBSERVER],
        ..ProxySettings::default()
    };
    let sut = SystemUnderTest::MeshProxy;
    let mut system = System::start_with(run.testbed, sut, &settings)?;
    load::measure(run.testbed, &mut system, Service::Http1, RATE, 1)?;
    let mut plan = run.plan.clone();
    plan.rounds *= MORE_ROUNDS;
    let run = Run { plan: &plan, ..run };
    rounds(run, |number, progress| {
        let mut round = Round::default();
        for variant in Variant::order(number) {
            progress.line(&format!("round {}, {}", number + 1, variant.sut()));
            progress.tick();
            let (sample, failed) = match variant {
                Variant::With => tapped(run, &mut system)?,
                Variant::Without => measure(run, &mut system)?,
            };
            round.samples.insert(variant.sut(), sample);
            round.failed.insert(variant.sut(), failed);
        }
        add_ratio(&mut round);
        Ok(round)
    })
}

fn measure(run: Run<'_>, system: &mut System) -> anyhow::Result<(Sample, u64)> {
    load::measure(run.testbed, system, Service::Http1, RATE, run.plan.seconds)
}

fn tapped(run: Run<'_>, system: &mut System) -> anyhow::Result<(Sample, u64)> {
    let tap = start_tap(run.testbed, system)?;
    let (mut sample, failed) = measure(run, system)?;
    // The end of its input ends the tap.
    let report = tap.output()?;
    let report: serde_json::Value =
        serde_json::from_str(report.trim()).with_context(|| format!("the tap printed {report}"))?;
    let number = |name: &str| {
        let number = report[name].as_f64();
        number.with_context(|| format!("the tap printed {report}"))
    };
    // Some of the time it waited for the load to begin.
    let rate = number("requests")? / f64::from(run.plan.seconds);
    if rate < LEAST {
        bail!("the tap reported {rate:.0} requests a second instead of {LIMIT}");
    }
    sample.insert(Metric::Tapped, rate);
    Ok((sample, failed))
}

fn start_tap(testbed: &Testbed, system: &System) -> anyhow::Result<Process> {
    let target = SocketAddr::from((system.pods.server.ip, PORT));
    let pod = &system.pods.client;
    let mut command = pod.command(CLIENT, &testbed.programs.bench)?;
    command
        .args(["load", "tap", "--target", &target.to_string()])
        .args(["--name", SERVER, "--limit", &LIMIT.to_string()])
        .arg("--authority")
        .arg(testbed.authority());
    let process = Process::start(&format!("{}-tap", pod.name), &mut command)?;
    process.next_event()?;
    Ok(process)
}

/// Adds the ratio of p99 with the tap to p99 without it.
fn add_ratio(round: &mut Round) {
    let p99 = |variant: Variant| {
        round
            .samples
            .get(&variant.sut())?
            .get(&Metric::P99)
            .copied()
    };
    let (Some(with), Some(without)) = (p99(Variant::With), p99(Variant::Without)) else {
        return;
    };
    if let Some(sample) = round.samples.get_mut(&Variant::With.sut()) {
        sample.insert(Metric::P99Tapped, with / without);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_that_of_the_same_round() {
        let mut round = Round::default();
        add_ratio(&mut round);
        assert!(round.samples.is_empty());
        for (variant, p99) in [(Variant::With, 3.0), (Variant::Without, 2.0)] {
            let sample = Sample::from([(Metric::P99, p99)]);
            round.samples.insert(variant.sut(), sample);
        }
        add_ratio(&mut round);
        let ratio = |variant: Variant| round.samples[&variant.sut()].get(&Metric::P99Tapped);
        assert_eq!(ratio(Variant::With), Some(&1.5));
        assert_eq!(ratio(Variant::Without), None);
    }
}
